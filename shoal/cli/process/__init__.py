"""Processes and signals of commands."""
