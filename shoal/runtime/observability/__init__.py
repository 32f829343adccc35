"""Logs, tracebacks and traces."""
