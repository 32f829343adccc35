"""The host of a peer, for edge clients and standalone peers."""
