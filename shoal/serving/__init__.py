"""Server of predictions of a trained model: `shoal serve`."""
