"""Tasks of simulated nodes: learners that are made when needed, and processes that train them."""
