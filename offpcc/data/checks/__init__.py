"""`offpcc check --dataset`: checks of recorded data."""
