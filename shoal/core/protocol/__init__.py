"""Messages between hub, worker and peers, and the interface of a state machine."""
