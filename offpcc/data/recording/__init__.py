"""Recording of episodes into HDF5 and Minari files."""
