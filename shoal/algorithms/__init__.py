"""Algorithms: one file, one class, one paper."""
