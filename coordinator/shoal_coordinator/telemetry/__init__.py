"""Byte counts, logs, events, failures and metrics."""
