"""``python -m scripts.bench_answers``: how near each runtime of SmolLM2 comes to the weights that were published.

Answers of a voice agent (``dialogues.json``) are put to the model word by word, and what it thought would come is
compared with what the same weights say in single precision (``reference``). Nothing is sampled.
"""
