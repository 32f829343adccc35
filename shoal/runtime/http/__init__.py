"""The HTTP client side: connections, the node protocol, retries and limits."""
