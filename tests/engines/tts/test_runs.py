"""Where long text is cut for one inference after another."""

from __future__ import annotations

from engines.tts.g2p.english import SpokenWord
from engines.tts.g2p.runs import runs_of


def test_runs_end_at_pauses_where_they_can() -> None:
    words = [SpokenWord("abcd", index, "," if index == 2 else "") for index in range(6)]
    for most, lengths in ((4, [3, 3]), (2, [2, 2, 2]), (0, [1] * 6)):
        runs = runs_of(words, most, len)
        assert [len(run) for run in runs] == lengths
        assert [word for run in runs for word in run] == words
    assert runs_of([], 8, len) == []
