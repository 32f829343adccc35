"""The HTTP server below the API: the metered protocol, limits, problems and body reception."""
