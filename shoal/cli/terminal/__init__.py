"""Output on a terminal: tables, text, values and options."""
