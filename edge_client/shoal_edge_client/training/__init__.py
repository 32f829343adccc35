"""Training on an edge client: its tasks one after the other, and where the learner works."""
