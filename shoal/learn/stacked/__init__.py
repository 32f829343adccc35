"""Training of many learners of one simulation at once."""
