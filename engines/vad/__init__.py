"""Voice activity: is someone speaking, 32 ms at a time."""
