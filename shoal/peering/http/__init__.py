"""The HTTP server and links of a peer."""
