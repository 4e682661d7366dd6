"""The results store: what a search found, kept for the next one."""
