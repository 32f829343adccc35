"""Models as trees of tensors, their aggregation and compression."""
