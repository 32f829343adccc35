"""Filters: transformations of trees on their way, one file and one paper each."""
