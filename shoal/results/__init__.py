"""Results of runs and their comparison."""
