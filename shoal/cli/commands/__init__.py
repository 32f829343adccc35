"""The commands of `shoal`, one file each."""
