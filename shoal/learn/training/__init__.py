"""Local training of PyTorch models."""
