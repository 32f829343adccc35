"""The gossip state machine of a peer."""
