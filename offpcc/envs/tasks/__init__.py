"""The tasks of offpcc, one family per file, each with its rows of the table `ENVIRONMENTS`."""
