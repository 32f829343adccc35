"""The node protocol at the coordinator: polls, reports and their answers."""
