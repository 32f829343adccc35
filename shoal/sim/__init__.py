"""The same hub and workers on a virtual clock, with seeded faults, and invariants checked after every event."""
