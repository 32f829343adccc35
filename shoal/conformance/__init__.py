"""Conformance of edge clients in any language: jobs whose results are known to the bit."""
