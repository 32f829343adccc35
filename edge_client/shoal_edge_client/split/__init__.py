"""A node's part in one split job."""
