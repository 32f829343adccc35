"""Seeded scenarios: many small runs with different jobs and faults."""
