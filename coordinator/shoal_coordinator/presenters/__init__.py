"""Views of jobs and nodes, as the API shows them."""
