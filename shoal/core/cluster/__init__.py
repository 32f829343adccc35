"""Leader lease and job assignment among several coordinators."""
