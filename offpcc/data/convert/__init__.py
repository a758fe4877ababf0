"""Readers of recorded Atari data: RL Unplugged's shards and Dopamine's replay logs, written as datasets of frames."""
