"""The job file and its presets."""
