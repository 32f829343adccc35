"""Simulated processes: coordinator, nodes, peers and the worlds they live in."""
