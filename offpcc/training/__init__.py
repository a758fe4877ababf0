"""Training: the loop, its environments and tests, checkpoints, run folders, loggers and plots."""
