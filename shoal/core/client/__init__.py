"""The worker: the node's state machine for one job."""
