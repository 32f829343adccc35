"""Alert rules, the loop that evaluates them, and webhooks."""
