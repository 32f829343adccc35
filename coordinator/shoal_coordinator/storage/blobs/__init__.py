"""Blob stores: a folder, one that several coordinators share, memory, or a store that speaks S3."""
