"""Replay buffers of steps and of sequences, and their snapshots."""
