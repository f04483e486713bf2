"""Sample work on mono int16 PCM, pure and stateful-where-it-must-be: codecs, rates, levels, WAV bytes."""
