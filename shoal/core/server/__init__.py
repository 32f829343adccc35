"""The hub: the coordinator's state machine for one job."""
