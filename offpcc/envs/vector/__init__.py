"""Several environments at once, in this process or in worker processes."""
