"""The process around a peer's state machine: group, pump, trainer and state."""
