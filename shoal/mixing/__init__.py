"""Ways in which the models of peers become one, a file each; `shoal.core.gossip` says what a mixer is."""
