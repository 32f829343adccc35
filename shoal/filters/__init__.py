"""What happens to trees on their way: one file, one filter, one paper."""
