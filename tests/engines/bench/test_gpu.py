"""The bench on real engines, tiny ones: the same turns for every policy, and what its result must tell."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # else each new kernel costs a run of the C++ compiler

from engines.bench import gpu
from engines.bench.gpu import Options, bench, most_calls, table
from engines.bench.watched import POLICIES, Ledger, Watched
from engines.executor.costs import Costs
from engines.executor.kinds import Key, Kind
from engines.executor.load import arrivals
from streaming.jobs import Priority

SPEAK, STEP = Kind("kokoro-1", "speak", max_batch=4, alike=True), Kind("llm-1", "decode", max_batch=8)
CALLS, SECONDS, SEED = 3, 3.0, 18


def test_the_lock_serves_one_job_to_its_end_and_fifo_all_that_fit() -> None:
    for policy, served in (("lock", [("a",), ("a",), ("b",)]), ("fifo", [("a", "b"), ("a", "b"), ("b",)])):
        agenda = Watched(policy, Costs())
        keys = {name: Key("llm-1", name, 1) for name in "ab"}
        for key in keys.values():
            agenda.add(key, STEP, Priority.DECODE, 1.0, 0.0)
        assert len(agenda) == 2
        assert keys["a"] in agenda
        seen = []
        for step in range(3):
            choice = agenda.choose(0.0)
            assert choice is not None
            agenda.observe(choice, 0.01)
            seen.append(tuple(key.call for key in choice.keys))
            if step == 1:
                agenda.drop(keys["a"])
        assert seen == served
        agenda.drop(keys["b"])
        assert agenda.choose(0.0) is None
        assert not len(agenda)


def test_the_ledger_tells_all_of_the_threads_time() -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0, 15.0])  # made; asked 1..3; observed; asked 14..15
    agenda = Watched("edf", Costs(), lambda: next(times))
    key = Key("kokoro-1", "a", 1)
    agenda.add(key, SPEAK, Priority.FIRST_AUDIO, 1.0, 0.0, units=64, bucket=64)
    choice = agenda.choose(0.0)
    assert choice is not None
    agenda.observe(choice, 7.0)
    agenda.drop(key)
    assert agenda.choose(0.0) is None
    ledger = agenda.ledger
    assert (ledger.idle_s, ledger.choosing_s, ledger.between_s, ledger.busy_s) == (1.0, 3.0, 4.0, 7.0)
    assert ledger.quanta[("kokoro", "speak")].jobs == 1
    assert ledger.rows("kokoro", "speak") == 1.0
    assert Ledger().rows("kokoro", "speak") == 0.0


def test_no_other_policy() -> None:
    with pytest.raises(ValueError, match="there are edf, fifo, lock"):
        Watched("lifo", Costs())
    with pytest.raises(ValueError, match="lifo"):
        gpu.names("edf,lifo")


def test_most_calls_by_policy() -> None:
    levels = [
        {"policy": policy, "calls": calls, "passed": calls <= good, "passed_p95": calls <= in_time}
        for policy, good, in_time in (("edf", 16, 32), ("lock", 0, 8))
        for calls in (8, 16, 32)
    ]
    assert most_calls(levels, ("edf", "lock")) == {
        "edf": {"good_calls": 16, "p95": 32},
        "lock": {"good_calls": 0, "p95": 8},
    }


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mlx", "mlx_lm", "mlx_whisper", "mlx_audio")),
    reason="not all of MLX's model libraries are installed",
)
async def test_every_policy_serves_the_same_turns(tmp_path: Path) -> None:
    options = Options(
        "tiny", (CALLS,), seconds=SECONDS, seed=SEED, phonemes=(6, 10), rehearsed=(1,), neighbour=False, storm_s=0.5
    )
    planned = arrivals(CALLS, SECONDS, SEED)
    assert len({turn.call for turn in planned}) == len(planned) > 1  # none ends another
    written: list[dict[str, Any]] = []

    def write(result: dict[str, Any]) -> None:
        gpu.write_json(tmp_path / "result.json", result)
        written.append(json.loads((tmp_path / "result.json").read_text()))

    result = await bench(options, lambda line: None, write)

    assert [len(one["levels"]) for one in written] == [0, 1, 2, 3, 3]
    assert [level["policy"] for level in result["levels"]] == list(POLICIES)
    for level in result["levels"]:
        assert (level["begun"], level["complete"]) == (len(planned), len(planned)), level
        assert level["failed"] == {}
        assert level["superseded"] == 0
        quanta = {row["what"]: row for row in level["profile"]}
        assert {"stt encode", "stt transcribe", "llm start", "llm prefill", "llm decode"} <= set(quanta)
        assert quanta["stt encode"]["quanta"] == len(planned)
        spoken = quanta["kokoro speak"]
        assert round(spoken["quanta"] * spoken["rows"]) == 2 * len(planned)
        assert level["first_audio_p50_ms"] <= level["first_audio_p95_ms"] <= level["first_audio_worst_ms"]
        assert 0 < level["busy"] <= 1
    lock = next(level for level in result["levels"] if level["policy"] == "lock")
    assert lock["decode_rows"] == lock["speak_rows"] == lock["transcribe_rows"] == 1.0
    assert set(result["max_calls"]) == set(POLICIES)
    text = table(result, profile=True)
    assert text.count("| llm decode |") == len(POLICIES)
    assert all(f"| {policy} | {CALLS} |" in text or f"| {policy} (given up) | {CALLS} |" in text for policy in POLICIES)
