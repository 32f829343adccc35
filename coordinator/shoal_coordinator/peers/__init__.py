"""Nodes as peers of each other: trust documents, status and consensus."""
