"""Schedules: one file, one class."""
