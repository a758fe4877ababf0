"""Settings by gin: what can be configured, which values are valid, and the reading of files."""
