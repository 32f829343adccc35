"""The database and the blob stores."""
