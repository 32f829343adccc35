"""Data sets, partitions, streams and batches."""
