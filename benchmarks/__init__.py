"""How fast offpcc is, measured beside its peers and beside the cost of the matrix products; see `make help`."""
