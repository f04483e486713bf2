"""End of turn: has the caller finished, or only paused."""
