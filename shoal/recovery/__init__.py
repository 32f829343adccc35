"""Checkpoints that nodes keep, and the choice among them."""
