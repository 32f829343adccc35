"""Selections of nodes, one file each."""
