"""From what a language model writes to what a voice should say: clause splitting and speakable text."""
