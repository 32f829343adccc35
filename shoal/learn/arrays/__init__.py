"""Learners without torch: own functions over numpy, JAX or MLX arrays."""
