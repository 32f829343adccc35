"""A training process of several ranks: they join a group, and do what rank 0 is asked."""
