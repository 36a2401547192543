"""Real processes against each other: what is killed, stopped, shared and timed against somebody else."""
