"""Versions of what nodes and coordinators say to each other. Imports nothing, so that a command pays for no more."""

PROTOCOLS = (1,)
"""Versions of the wire protocol that this release speaks, oldest first."""
