"""The demos of `shoal demo`."""
