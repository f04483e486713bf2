"""``python -m loadtest.bench_call``: where the time of a turn goes, over calls of one turn each.

Calls are placed one after another, and the variants take turns (A B A B), so that whatever else the machine does falls
on all of them alike. Stages come from the gateway's public ``GET /v1/calls/{id}``, voice-to-voice
from the caller's own recordings.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import quote

import httpx
import msgspec
import typer

from loadtest.address import call_address
from loadtest.call import Transport
from loadtest.command import CallOptions, CallUsageError, Say, place_call
from loadtest.percentiles import nearest_rank
from loadtest.script import Patience

STAGES = ("decision_ms", "final_ms", "first_token_ms", "first_clause_ms", "first_audio_ms", "first_sent_ms")
"""Fields of a turn's latency record, ms after the caller's last voiced sample as the gateway heard it."""

HEARD = "voice_to_voice_ms"
AFTER_SENDING = "sent to heard"
QUESTIONS = ("What are your opening hours?", "Where are you located?", "How much does it cost?", "Do you deliver?")

_RECORD_TRIES = 20
_RECORD_WAIT_S = 0.1


class _Turn(msgspec.Struct, frozen=True):
    decision_ms: float | None = None
    final_ms: float | None = None
    first_token_ms: float | None = None
    first_clause_ms: float | None = None
    first_audio_ms: float | None = None
    first_sent_ms: float | None = None


class _Record(msgspec.Struct, frozen=True):
    turns: list[_Turn] = []


@dataclass(slots=True)
class Variant:
    """One way of running, and what was measured of it: stage name -> ms, one value a call that has it."""

    name: str
    url: str
    times: dict[str, list[float]] = field(default_factory=dict)
    calls: int = 0
    unanswered: int = 0
    unrecorded: int = 0
    worst_caller_lag_ms: float = 0.0

    def add(self, stage: str, value: float | None) -> None:
        if value is not None:
            self.times.setdefault(stage, []).append(value)


def record_url(url: str, call_id: str) -> str:
    """Where the gateway behind a call's URL tells of that call."""
    return call_address(url, None).beside(f"/v1/calls/{quote(call_id, safe='')}")


async def run_bench(
    variants: Sequence[Variant],
    *,
    calls: int,
    questions: Sequence[str] = QUESTIONS,
    key: str | None = None,
    patience: Patience | None = None,
) -> None:
    """Place ``calls`` calls a variant, after one unmeasured call each, and file the times in the variants.

    Raises :class:`CallUsageError` if a question can't be spoken or a variant's URL is none.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=5.0) as http:
        for number in range(-1, calls):
            question = questions[max(0, number) % len(questions)]
            for variant in variants:
                await _one_call(
                    Variant(variant.name, variant.url) if number < 0 else variant, question, key, http, patience
                )


async def _one_call(
    variant: Variant, question: str, key: str | None, http: httpx.AsyncClient, patience: Patience | None
) -> None:
    report = await place_call(CallOptions(variant.url, (Say(question),), key=key, patience=patience))
    variant.calls += 1
    variant.worst_caller_lag_ms = max(variant.worst_caller_lag_ms, report.caller_lag_ms)
    heard_ms = report.turns[0].voice_to_voice_ms if report.turns else None
    if heard_ms is None:
        variant.unanswered += 1
        return
    variant.add(HEARD, heard_ms)
    turn = await _latency_record(variant.url, report.call_id, http)
    if turn is None:
        variant.unrecorded += 1
        return
    for stage in STAGES:
        variant.add(stage, getattr(turn, stage))
    if turn.first_sent_ms is not None:
        variant.add(AFTER_SENDING, heard_ms - turn.first_sent_ms)


async def _latency_record(url: str, call_id: str | None, http: httpx.AsyncClient) -> _Turn | None:
    """The last turn that was sent to the caller: a greeting has no decision, a dropped speculation was not sent."""
    if call_id is None:
        return None
    for _ in range(_RECORD_TRIES):
        try:
            answer = await http.get(record_url(url, call_id))
            answer.raise_for_status()
            record = msgspec.json.decode(answer.content, type=_Record)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return None
        sent = [turn for turn in record.turns if turn.first_sent_ms is not None and turn.decision_ms is not None]
        if sent:
            return sent[-1]
        await asyncio.sleep(_RECORD_WAIT_S)
    return None


def stage_table(variants: Sequence[Variant]) -> str:
    """p50 and p95 in ms of every stage, a column a variant; with two variants, the ratio of the second to the first."""
    head = f"{'ms after the last voiced sample':34}" + "".join(
        f"{variant.name + ' p50':>14}{'p95':>8}" for variant in variants
    )
    rows = [head, "-" * len(head)]
    for stage in (*STAGES, AFTER_SENDING, HEARD):
        cells = "".join(
            f"{_told(_percentile(v.times, stage, 50)):>14}{_told(_percentile(v.times, stage, 95)):>8}" for v in variants
        )
        rows.append(f"{stage.removesuffix('_ms').replace('_', ' '):34}{cells}")
    for variant in variants:
        notes = f"{variant.calls} calls, {variant.unanswered} unanswered, {variant.unrecorded} without a latency record"
        rows.append(f"{variant.name}: {notes}; worst lateness of the caller {variant.worst_caller_lag_ms:.0f} ms")
    halves = [half for variant in variants if (half := _percentile(variant.times, HEARD, 50)) is not None]
    if len(variants) == len(halves) == 2:
        first, second = halves
        rows.append(f"voice to voice p50, {variants[1].name} / {variants[0].name}: {second / first:.2f}")
    return "\n".join(rows)


def _percentile(times: Mapping[str, Sequence[float]], stage: str, percent: float) -> float | None:
    return nearest_rank(sorted(times.get(stage, ())), percent / 100)


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def machine_line() -> str:
    """The machine and its load (1, 5 and 15 minutes), to judge the numbers by."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load}"


def parse_variant(text: str) -> Variant:
    """``NAME=URL``. Raises :class:`typer.BadParameter`."""
    name, equals, url = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"not NAME=URL: {text}")
    try:
        transport = call_address(url, None).transport
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if transport not in (Transport.WEBSOCKET, Transport.WEBRTC):
        raise typer.BadParameter(f"the gateway's record of a {transport} call is not known by its id: {text}")
    return Variant(name, url)


def bench(
    variant: Annotated[list[str], typer.Option(help="NAME=URL; give two to compare them.")],
    calls: Annotated[int, typer.Option(min=1, max=1000, help="Measured calls a variant.")] = 20,
    say: Annotated[list[str] | None, typer.Option(help="Questions, asked in rotation; one a call.")] = None,
    key: Annotated[str | None, typer.Option(envvar="OFFHOOK_KEY", help="Bearer key.")] = None,
) -> None:
    """Measure one-turn calls and print where the time goes. Exit code 1 if a call was not answered."""
    variants = [parse_variant(text) for text in variant]
    before = machine_line()
    try:
        asyncio.run(run_bench(variants, calls=calls, questions=say or QUESTIONS, key=key))
    except CallUsageError as error:
        typer.echo(f"bench-call: {error}", err=True)
        raise typer.Exit(2) from error
    sys.stdout.write(f"before: {before}\nafter:  {machine_line()}\n{stage_table(variants)}\n")
    if any(each.unanswered for each in variants):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench)
