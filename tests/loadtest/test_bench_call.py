from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from loadtest import bench_call
from loadtest.bench_call import AFTER_SENDING, HEARD, Variant, parse_variant, record_url, run_bench, stage_table
from loadtest.command import CallOptions, CallUsageError
from loadtest.report import CallReport, TurnReport
from tests.listening import listening

SENT = {"decision_ms": 300.0, "final_ms": 420.0, "first_token_ms": 500.0, "first_sent_ms": 700.0, "speculative": True}
DROPPED = {"decision_ms": 100.0, "final_ms": 120.0, "first_sent_ms": None}
GREETING = {"decision_ms": None, "first_sent_ms": 5.0}


@asynccontextmanager
async def gateway(answers: list[tuple[HTTPStatus, Any]]) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server that gives the answers in order (the last again and again); yields a call URL and the requests."""
    requests: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        requests.append(request)
        status, body = answers[min(len(requests), len(answers)) - 1]
        content = json.dumps(body).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    async with listening(handle) as port:
        yield f"ws://127.0.0.1:{port}/v1/realtime?agent=a", requests


class Calls:
    """Stands in for :func:`place_call`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, heard_ms: float | None = 850.0) -> None:
        self.placed: list[tuple[str, str]] = []
        self._heard_ms = heard_ms
        monkeypatch.setattr(bench_call, "place_call", self.place)

    async def place(self, options: CallOptions) -> CallReport:
        (line,) = options.lines
        self.placed.append((options.url, getattr(line, "text", "")))
        turn = TurnReport("a", None, None, None, self._heard_ms, None, 0)
        return CallReport(self._heard_ms is not None, 1.0, "hangup", None, [turn], None, "call/1", 2.5, [], None)


async def test_variants_take_turns_with_the_same_question_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    async with gateway([(HTTPStatus.OK, {"turns": [SENT]})]) as (url, _):
        variants = [Variant("off", url + "1"), Variant("on", url + "2")]
        await run_bench(variants, calls=3, questions=("p", "q"))
    assert [text for _, text in calls.placed] == ["p", "p", "p", "p", "q", "q", "p", "p"]
    assert [address[-1] for address, _ in calls.placed] == ["1", "2"] * 4
    assert [variant.calls for variant in variants] == [3, 3]


async def test_the_turn_that_was_sent_is_read_not_the_greeting_or_a_dropped_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Calls(monkeypatch)
    record = {"id": "call/1", "state": "ended", "turns": [GREETING, SENT, DROPPED]}
    async with gateway([(HTTPStatus.OK, {"turns": []}), (HTTPStatus.OK, record)]) as (url, requests):
        variant = Variant("only", url)
        await run_bench([variant], calls=1, key="secret")
    assert variant.times == {
        "decision_ms": [300.0],
        "final_ms": [420.0],
        "first_token_ms": [500.0],
        "first_sent_ms": [700.0],
        AFTER_SENDING: [150.0],
        HEARD: [850.0],
    }
    assert requests[0].startswith("GET /v1/calls/call%2F1 ")
    assert "authorization: bearer secret" in requests[0].lower()


async def test_calls_without_an_answer_or_a_record_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Calls(monkeypatch, heard_ms=None)
    unanswered = Variant("a", "ws://127.0.0.1:1/")
    await run_bench([unanswered], calls=2)
    assert (unanswered.unanswered, unanswered.unrecorded, unanswered.times) == (2, 0, {})
    Calls(monkeypatch)
    async with gateway([(HTTPStatus.NOT_FOUND, {})]) as (url, _):
        unrecorded = Variant("b", url)
        await run_bench([unrecorded], calls=1)
    assert (unrecorded.unanswered, unrecorded.unrecorded) == (0, 1)
    assert unrecorded.times == {HEARD: [850.0]}


def test_the_table_shows_every_stage_and_the_ratio() -> None:
    off = Variant("off", "", {HEARD: [900.0, 1_100.0], "decision_ms": [300.0]}, calls=2)
    on = Variant("on", "", {HEARD: [750.0]}, calls=2, unanswered=1)
    table = stage_table([off, on])
    (decision,) = (row for row in table.splitlines() if row.startswith("decision"))
    assert decision.split() == ["decision", "300", "300", "-", "-"]
    (heard,) = (row for row in table.splitlines() if row.startswith("voice to voice  "))
    assert heard.split()[3:] == ["900", "1100", "750", "750"]
    assert "on / off: 0.83" in table
    assert "1 unanswered" in table
    assert " / " not in stage_table([off])


def test_addresses() -> None:
    assert record_url("wss://h:1/v1/realtime?agent=x", "call_1") == "https://h:1/v1/calls/call_1"
    assert parse_variant("on=ws://h/?a=b").url == "ws://h/?a=b"
    for bad in ("ws://h/", "=ws://h/", "on=h", "on=sip:h"):
        with pytest.raises(typer.BadParameter):
            parse_variant(bad)


@pytest.mark.parametrize(("unanswered", "failure", "code"), [(0, None, 0), (1, None, 1), (0, CallUsageError("why"), 2)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, unanswered: int, failure: Exception | None, code: int) -> None:
    async def bench(variants: list[Variant], **_options: object) -> None:
        variants[0].unanswered = unanswered
        if failure is not None:
            raise failure

    monkeypatch.setattr(bench_call, "run_bench", bench)
    app = typer.Typer()
    app.command()(bench_call.bench)
    result = CliRunner().invoke(app, ["--variant", "a=ws://h/"])
    assert result.exit_code == code
    assert ("cores, load" in result.stdout) == (code != 2)
