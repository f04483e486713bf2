"""Models, and the one thread that runs MLX."""
