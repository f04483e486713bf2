"""English spelling to phonemes: lexicon first, letter-to-sound network for the rest, espeak-style IPA out."""
