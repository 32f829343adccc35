"""Shells of the state machines: files, threads, network, logs and traces."""
