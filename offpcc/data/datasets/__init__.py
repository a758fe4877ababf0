"""Reading of recorded data: D4RL, HDF5, NPZ and Minari."""
