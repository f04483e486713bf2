"""The one thread that runs MLX: its policy, its caches, its batch."""
