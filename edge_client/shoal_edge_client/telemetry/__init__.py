"""Log lines, system metrics and the description that a node sends to its coordinator."""
