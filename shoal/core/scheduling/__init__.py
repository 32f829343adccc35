"""Base classes of schedules and node selection."""
