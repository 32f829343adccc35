"""Checks of configuration and messages."""
