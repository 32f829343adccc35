"""The route to the coordinator through a peer: signed requests that the peer relays."""
