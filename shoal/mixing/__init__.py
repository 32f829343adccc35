"""Ways of mixing the models of peers, one file each; `shoal.core.gossip.gossip` defines the interface."""
