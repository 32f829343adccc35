"""The pump of both sides of split learning in processes."""
