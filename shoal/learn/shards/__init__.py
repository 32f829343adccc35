"""A model in shards at the processes of one node."""
