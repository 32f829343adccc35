"""The pure core: no clock, socket, thread, file, environment or global randomness. It needs numpy and nothing else."""
