"""Gradient-boosted decision trees: the ensemble's arrays, quantile sketches, and splits by sums of gradients."""
