"""A call as spans: the call, its turns, their stages. Pure, and without OpenTelemetry.

Names and keys are constants. Values are ids, codes and numbers of ours: nothing that a caller said, heard, pressed or
is called by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.records.call_record import CallRecord
from gateway.telemetry.traces_context import CallTrace
from streaming.turn_times import TurnTimes

Value = str | int | float | bool
_At = Callable[[float], int]

ORDINARY_CAUSES = frozenset(
    {
        "caller_hung_up",
        "agent_hung_up",
        "operator_hung_up",
        "transferred",
        "max_duration",
        "server_drain",
        "server_stop",
        "outbound_limit",
        "busy",
        "no_answer",
        "declined",
        "cancelled",
        "not_found",
    }
)
"""How calls end that nothing went wrong with; any other cause is a fault."""

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class CallSnapshot:
    """What a trace needs of a call that is over."""

    trace: CallTrace
    started_at: datetime
    ended_ms: float
    answered_ms: float | None
    cause: str
    attributes: Mapping[str, Value]
    turns: tuple[TurnTimes, ...]

    @property
    def fault(self) -> str | None:
        """The cause, or what failed in a turn, where something went wrong."""
        if self.cause not in ORDINARY_CAUSES:
            return self.cause
        return next((turn.failure for turn in self.turns if turn.failure is not None), None)


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One span. Times are nanoseconds of Unix time; ``parent`` is the index of an earlier plan, None the call's own
    parent; ``fault``: the code of what went wrong in it."""

    name: str
    start_ns: int
    end_ns: int
    parent: int | None
    attributes: Mapping[str, Value]
    fault: str | None = None


def snapshot(record: CallRecord, trace: CallTrace) -> CallSnapshot:
    """Of a call that has ended; cheap."""
    attributes: dict[str, Value] = {
        "offhook.call.id": record.id,
        "offhook.call.transport": record.transport,
        "offhook.call.direction": record.direction,
        "offhook.call.agent": record.agent or "",
        "offhook.call.turns_dropped": record.turns_dropped,
    }
    for name, value in (record.quality or {}).items():
        if value is not None:
            attributes[f"offhook.media.{name}"] = value
    cause, ended_ms = record.cause or "unknown", record.ended_ms or 0.0
    return CallSnapshot(trace, record.started_at, ended_ms, record.answered_ms, cause, attributes, record.turns)


def spans_of(call: CallSnapshot) -> Iterator[SpanPlan]:
    """The call first; parents before their children."""
    begun_ns = round(call.started_at.timestamp() * 1_000_000) * (NS_PER_MS // 1000)

    def at(ms: float) -> int:
        return begun_ns + max(0, round(ms * NS_PER_MS))  # sound that came in with the call was spoken before it

    ending: dict[str, Value] = {"offhook.call.cause": call.cause, "offhook.call.turns": len(call.turns)}
    yield SpanPlan("call", at(0), at(call.ended_ms), None, {**call.attributes, **ending}, call.fault)
    setup_ms = call.ended_ms if call.answered_ms is None else call.answered_ms
    yield SpanPlan("setup", at(0), at(setup_ms), 0, {})
    count = 2
    for number, turn in enumerate(call.turns):
        if turn.at_ms is None:
            continue
        yield _turn(number, turn, at)
        parent, count = count, count + 1
        for stage in stages_of(turn):
            base = turn.at_ms
            yield SpanPlan(stage.name, at(base + stage.from_ms), at(base + stage.to_ms), parent, stage.attributes)
            count += 1


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of a turn, in milliseconds after the caller's last voiced sample."""

    name: str
    from_ms: float
    to_ms: float
    attributes: Mapping[str, Value]


def stages_of(turn: TurnTimes) -> Iterator[Stage]:
    """Each stage from when what it waits for was there (as the call page's waterfall has them); a stage may begin
    before the turn is decided, when the reply was made speculatively."""
    decided = None if turn.speculative else turn.decision_ms
    if turn.spoke_ms is not None:
        yield Stage("caller_speaks", -turn.spoke_ms, 0.0, {})
    waits: list[tuple[str, float | None, tuple[float | None, ...], dict[str, Value]]] = [
        ("end_of_turn", turn.decision_ms, (), {}),
        ("transcript", turn.final_ms, (), {}),
        ("first_token", turn.first_token_ms, (turn.final_ms, decided), _tokens(turn)),
        ("first_clause", turn.first_clause_ms, (turn.first_token_ms,), {}),
        ("first_audio", turn.first_audio_ms, (turn.first_clause_ms,), {}),
        ("first_sent", turn.first_sent_ms, (turn.first_audio_ms, turn.decision_ms), {}),
        ("agent_speaks", turn.ended_ms if turn.first_sent_ms is not None else None, (turn.first_sent_ms,), {}),
    ]
    for name, to_ms, needs, attributes in waits:
        if to_ms is not None:
            from_ms = max((need for need in needs if need is not None and need <= to_ms), default=0.0)
            yield Stage(name, min(from_ms, to_ms), to_ms, attributes)


def _turn(number: int, turn: TurnTimes, at: _At) -> SpanPlan:
    assert turn.at_ms is not None
    attributes: dict[str, Value] = {
        "offhook.turn.number": number,
        "offhook.turn.response_id": turn.response_id,
        "offhook.turn.spoken": bool(turn.utterance),
        "offhook.turn.speculative": turn.speculative,
        "offhook.turn.cut": turn.cut_to_silence_ms is not None,
    }
    for name in ("first_sent_ms", "cut_to_silence_ms"):
        value: float | None = getattr(turn, name)
        if value is not None:
            attributes[f"offhook.turn.{name}"] = round(value, 1)
    stages = list(stages_of(turn))
    begin_ms = min((stage.from_ms for stage in stages), default=0.0)
    end_ms = max((stage.to_ms for stage in stages), default=0.0)
    if turn.ended_ms is not None:
        end_ms = max(end_ms, turn.ended_ms)
    return SpanPlan("turn", at(turn.at_ms + begin_ms), at(turn.at_ms + end_ms), 0, attributes, turn.failure)


def _tokens(turn: TurnTimes) -> dict[str, Value]:
    """The first two as OpenTelemetry's conventions for generative AI have them."""
    return {
        "gen_ai.usage.input_tokens": turn.prompt_tokens,
        "gen_ai.usage.output_tokens": turn.completion_tokens,
        "offhook.llm.prefilled_tokens": turn.prefilled_tokens,
    }
