"""Tools without any reinforcement learning: errors, files, locks, signals, figures, videos."""
