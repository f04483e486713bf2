"""Words in runs, each short enough for one inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.tts.g2p.english import SpokenWord

Size = Callable[[Sequence[SpokenWord]], int]
"""How much of an inference's room some words take."""


def runs_of(words: Sequence[SpokenWord], most: int, size: Size) -> list[list[SpokenWord]]:
    """Runs of at most ``most`` (a longer word is a run alone), cut after the last pause in the run's second half if
    there is one."""
    runs: list[list[SpokenWord]] = []
    run: list[SpokenWord] = []
    for word in words:
        if run and size([*run, word]) > most:
            pauses = [index for index, member in enumerate(run) if member.pause and index >= len(run) // 2]
            cut = pauses[-1] + 1 if pauses else len(run)
            runs.append(run[:cut])
            run = run[cut:]
        run.append(word)
    return [*runs, run] if run else runs
