"""Durable state of a peer, and its byte counts."""
