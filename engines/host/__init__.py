"""Engines in child processes: the audio loop never waits on a model's Python, and a crash is contained."""
