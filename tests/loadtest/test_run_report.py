from __future__ import annotations

import json

import pytest

from loadtest.readings import Machine
from loadtest.run_report import VERSION, ReportError, RunReport, TurnPoint, Verdict, from_json, to_json

REPORT = RunReport(
    verdict=Verdict.GOOD,
    scenario="smoke",
    seed=1,
    started_at="2026-11-30T10:00:00+00:00",
    length_s=60.0,
    machine=Machine(cores=2),
    turns=(TurnPoint(at_s=1.5, voice_to_voice_ms=640.0, call=3, up=20),),
)


def test_every_key_is_always_there() -> None:
    document = json.loads(to_json(REPORT))
    assert set(document) == set(RunReport.__struct_fields__)
    assert document["version"] == VERSION
    assert document["knee"] is None
    assert set(document["latency_ms"]["stop"]) == {"count", "p50", "p90", "p95", "p99", "max"}


def test_keys_that_others_rely_on() -> None:
    document = json.loads(to_json(REPORT))
    assert {"goodput", "late_frames_ratio", "calls", "latency_ms"} <= set(document)
    assert {"offered", "accepted", "completed", "refused", "failed", "dropped", "abandoned", "good"} <= set(
        document["calls"]
    )
    assert {"voice_to_voice", "stop", "setup", "talked_on"} <= set(document["latency_ms"])


def test_a_dot_is_an_array() -> None:
    assert json.loads(to_json(REPORT))["turns"] == [[1.5, 640.0, 3, 20]]


def test_there_and_back_and_what_is_new_is_left_out() -> None:
    assert from_json(to_json(REPORT)) == REPORT
    later = json.loads(to_json(REPORT)) | {"something_new": 1}
    assert from_json(json.dumps(later).encode()) == REPORT


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"{nonsense", b'{"scenario": 5}'])
def test_what_is_no_report(document: bytes) -> None:
    with pytest.raises(ReportError, match="not the report of a load test"):
        from_json(document)


def test_a_version_that_is_not_known() -> None:
    document = json.loads(to_json(REPORT)) | {"version": VERSION + 1}
    with pytest.raises(ReportError, match=f"version {VERSION + 1}"):
        from_json(json.dumps(document).encode())
