"""Where models and updates lie: a folder, one that several coordinators share, memory, or a store that speaks S3."""
