"""Messages and models as bytes."""
