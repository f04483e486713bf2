"""Text-to-speech backends, one module each."""
