"""Networks with an exit at each level: entropies, thresholds, decisions, and the bytes of an answer."""
