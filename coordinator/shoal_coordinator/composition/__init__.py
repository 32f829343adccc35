"""The composition root: the coordinator's parts and how they are wired."""
