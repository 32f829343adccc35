"""Split learning: the first layers of a model at a node, the others at the coordinator."""
