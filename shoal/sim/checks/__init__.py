"""Invariants that hold in every simulated run."""
