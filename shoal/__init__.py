"""shoal: federated and decentralized deep learning."""

__version__ = "0.1.0"
