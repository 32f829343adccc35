"""Virtual time, the simulated network and its faults."""
