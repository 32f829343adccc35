"""Split jobs in one process: machines, network and faults are simulated."""
