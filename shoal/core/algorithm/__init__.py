"""Base classes of algorithms, filters and learners."""
