"""Who takes part: one file, one way of choosing."""
