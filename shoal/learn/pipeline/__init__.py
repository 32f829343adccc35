"""A model in stages at the processes of one node."""
