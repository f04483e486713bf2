"""One call of the report, to be seen and heard: both sides' sound on one line of time, what was waited for, and where
the time of each answer went by the server's own record.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.markup import Content, Markup, join, number, tag, words
from loadtest.measure import voiced_spans
from loadtest.outcome import CallOutcome, TurnOutcome
from loadtest.page_parts import cell, pill, table
from loadtest.plots import Axis, over_time, say_clock, say_ms
from loadtest.report_audio import Clip, data_uri, outline, read_clip
from loadtest.report_words import FATES, fault_words, kind_words
from loadtest.run_report import CallDetail, StageTimes

STAGES = (
    ("decision", "End of turn", "decision_ms", ()),
    ("final", "Final transcript", "final_ms", ("decision_ms",)),
    ("token", "First token", "first_token_ms", ("final_ms", "decision_ms")),
    ("audio", "First audio", "first_audio_ms", ("first_token_ms",)),
    ("packet", "First packet", "first_sent_ms", ("first_audio_ms", "decision_ms")),
)
"""As the call page and the console show them: class, name, field, and what has to be there before it can begin."""

_TO_SEE_S = 0.02
MOST_TURNS = 40
"""Of one call; the rest is said to be left out."""


@dataclass(frozen=True, slots=True)
class CallCard:
    markup: Markup
    sound_bytes: int
    """That its sound takes on the page."""


def call_card(
    detail: CallDetail, recordings: Path | None, expect: dict[str, float | bool], audio_bytes: int, *, opened: bool
) -> CallCard:
    """The card of a call, ``opened`` or folded to a line. ``audio_bytes``: how much sound it may bring."""
    call = detail.outcome
    clip = None
    if recordings is not None and call.recording is not None:
        clip = read_clip(recordings, call.recording, _worst_moment(call))
    sound = data_uri(clip) if clip is not None else None
    if sound is not None and len(sound) > audio_bytes:
        sound = None
    card = tag(
        "details",
        tag("summary", tag("h3", f"Call {call.number}"), *_marks(call)),
        _facts(call),
        tag("p", words(call.problem), class_="problem") if call.problem else None,
        _picture(call, clip, expect) if clip is not None else None,
        _player(call, clip, sound),
        _turns(call, expect),
        _stages(detail.stages),
        class_="call",
        open=opened,
    )
    return CallCard(card, len(sound) if sound is not None else 0)


def _marks(call: CallOutcome) -> list[Markup]:
    if call.good:
        return [pill("good", "ok")]
    return [pill(fault_words(fault)[0], "bad") for fault in call.faults[:8]]


def _facts(call: CallOutcome) -> Markup:
    facts: list[tuple[str, Content]] = [
        ("Over", words(call.transport)),
        ("Ended", f"{FATES[call.fate]}"),
        ("Cause", words(call.end_cause)),
        ("Offered at", say_clock(call.offered_s)),
        ("Lasted", say_clock(call.ended_s - (call.answered_s if call.answered_s is not None else call.offered_s))),
        ("Set up in", _ms(call.setup_ms)),
        ("Late frames", f"{call.frames_late} of {call.frames_due}"),
        ("Lost", call.frames_lost or None),
        ("Longest gap", _ms(call.longest_gap_ms) if call.gaps else None),
        ("Estimated MOS", number(call.mos) if call.mos is not None else None),
        ("Words of others", words(", ".join(call.foreign_codes[:8])) if call.foreign_codes else None),
        ("Damaged words", call.damaged_codes or None),
        ("Caller’s own lag", _ms(call.caller_lag_ms) if call.caller_lag_ms >= 1 else None),
        ("Id", words(call.call_id) if call.call_id else None),
    ]
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts if value is not None]
    return tag("dl", *pairs, class_="facts numbers")


def _player(call: CallOutcome, clip: Clip | None, sound: str | None) -> Markup | None:
    if clip is None:
        return tag("p", "The recording is not there.", class_="muted small") if call.recording else None
    cut = ""
    if not clip.whole:
        end = (clip.from_ms + clip.length_ms) / 1000
        cut = f" {say_clock(clip.from_ms / 1000)} to {say_clock(end)} of {say_clock(clip.of_ms / 1000)}."
    if sound is None:
        return tag("p", f"Its sound is left out to keep the page small.{cut}", class_="muted small")
    name = f"Call {call.number}: caller left, agent right"
    player = tag("audio", controls=True, preload="metadata", src=sound, aria_label=name)
    return tag("div", player, tag("p", f"Caller left, agent right.{cut}", class_="muted small"), class_="player")


# --- the picture ---


def _picture(call: CallOutcome, clip: Clip, expect: dict[str, float | bool]) -> Markup:
    begin_s, length_s = clip.from_ms / 1000, max(clip.length_ms / 1000, 0.02)
    clock = over_time(length_s)
    across = Axis(0.0, length_s, clock.ticks, lambda at: say_clock(begin_s + at))
    loudest = int(max(np.abs(clip.caller.astype(np.int32)).max(), np.abs(clip.agent.astype(np.int32)).max(), 328))
    lanes = [
        _lane("Caller", "caller", outline(clip.caller, loudest), "4%", "30%"),
        _lane("Agent", "agent", outline(clip.agent, loudest), "66%", "30%"),
    ]
    ticks = []
    for value in across.ticks:
        x = _share(across.share(value))
        anchor = "start" if value == 0 else "end" if across.share(value) > 0.97 else "middle"
        ticks.append(tag("line", class_="grid", x1=x, x2=x, y1="0", y2="100%"))
        ticks.append(tag("text", across.say(value), x=x, y="100%", dy="16", text_anchor=anchor))
    waits = _waits(call, clip, across, expect)
    told = f"Call {call.number}: the sound of both sides over {say_clock(length_s)}. The table below tells its turns."
    parts = [tag("g", *ticks, aria_hidden="true"), *lanes, *waits]
    svg = tag("svg", *parts, class_="plot sound", role="img", aria_label=told)
    return tag("div", svg, class_="figure", data_length=length_s)


def _lane(name: str, tone: str, path: str, y: str, height: str) -> Markup:
    middle = _share((float(y[:-1]) + float(height[:-1]) / 2) / 100)
    label = tag("text", name, x="0", y=middle, dx="-8", dy="0.32em", text_anchor="end", aria_hidden="true")
    line = tag("line", class_="grid", x1="0", x2="100%", y1=middle, y2=middle)
    if not path:
        return join([line, label])
    box = {"viewBox": "0 0 500 100", "preserveAspectRatio": "none", "x": "0", "y": y, "width": "100%", "height": height}
    return join([line, tag("svg", tag("path", d=path, class_=f"wave {tone}"), **box), label])


def _waits(call: CallOutcome, clip: Clip, across: Axis, expect: dict[str, float | bool]) -> list[Markup]:
    """Between the lanes: how long each answer, and each silence after an interruption, was waited for."""
    drawn: list[Markup] = []
    spans = voiced_spans(clip.caller, clip.rate_hz)
    ends = [clip.from_ms + span.end * 1000 / clip.rate_hz for span in spans]
    for turn, following in itertools.zip_longest(call.turns, call.turns[1:]):
        until = following.in_call_ms if following is not None else float("inf")
        own = [end for end in ends if turn.in_call_ms < end < until]
        said_out = turn.in_call_ms if turn.kind == "press" or not own else own[-1]
        for name, begin, length, bad in (
            ("stop", turn.in_call_ms, turn.stop_ms, _over(turn.stop_ms, expect.get("stop_within_ms"))),
            ("answer", said_out, turn.voice_to_voice_ms, _over(turn.voice_to_voice_ms, expect.get("answer_within_ms"))),
        ):
            at_s = (begin - clip.from_ms) / 1000
            if length is None or at_s < 0 or at_s > across.high - _TO_SEE_S:  # the clip ends before the line does
                continue
            y = 40 if name == "stop" else 49
            left, right = across.share(at_s), across.share(at_s + max(length, 0.0) / 1000)
            tone = f"wait {name}{' bad' if bad else ''}"
            tip = f"{'Silent' if name == 'stop' else 'Answered'} after {say_ms(length)}"
            place = {"x": _share(left), "width": _share(max(right - left, 0.002)), "y": f"{y}%", "height": "6%"}
            drawn.append(tag("rect", tag("title", tip), class_=tone, rx="2", **place))
            if name == "answer":
                edge = right > 0.95  # where the label has no room any more; earlier, it meets the one before
                at = {"x": _share(left if edge else right), "dx": "-4" if edge else "4"}
                at["text_anchor"] = "end" if edge else "start"
                text = f"{'! ' if bad else ''}{say_ms(length)}"
                drawn.append(
                    tag(
                        "text",
                        text,
                        class_="wait-name" if bad else "wait-name fine",
                        y="52%",
                        dy="0.32em",
                        **at,
                    )
                )
    return drawn


# --- the turns ---


def _turns(call: CallOutcome, expect: dict[str, float | bool]) -> Markup | None:
    if not call.turns:
        return None
    rows = [_turn(turn, expect) for turn in call.turns[:MOST_TURNS]]
    left_out = len(call.turns) - MOST_TURNS
    heads = ("In call", "Caller", "Answer", "Silent", "Talked on", "Heard", "Late")
    shown = table(f"Turns of call {call.number}", heads, rows, class_="turns")
    more = tag("p", f"{left_out} more turns are in the JSON.", class_="muted small") if left_out > 0 else None
    return tag(
        "details",
        tag("summary", f"{len(call.turns)} turn{'s' if len(call.turns) != 1 else ''}"),
        shown,
        more,
        class_="fold",
        open=len(call.turns) <= 6,
    )


def _turn(turn: TurnOutcome, expect: dict[str, float | bool]) -> list[Content]:
    said = join([kind_words(turn.kind), ": " if turn.text else "", words(turn.text)])
    missing = turn.answer_expected and turn.voice_to_voice_ms is None
    late_answer = _over(turn.voice_to_voice_ms, expect.get("answer_within_ms"))
    answer = "none" if missing else _ms(turn.voice_to_voice_ms)
    if turn.cut_in_ms is not None:
        answer = f"cut in by {say_ms(turn.cut_in_ms)}"
    return [
        say_clock(turn.in_call_ms / 1000),
        said,
        cell(answer, bad=missing or late_answer or turn.cut_in_ms is not None),
        cell(_ms(turn.stop_ms), bad=_over(turn.stop_ms, expect.get("stop_within_ms"))),
        _ms(turn.talked_on_ms),
        words(", ".join(turn.heard_codes[:6])) if turn.heard_codes else None,
        turn.late_frames or None,
    ]


def _stages(stages: Sequence[StageTimes]) -> Markup | None:
    """A waterfall of each answer, all on one scale: work may begin before the turn was decided to be over, so bars
    overlap, and each begins where what it needs was there."""
    shown = [times for times in stages if any(getattr(times, field) is not None for _, _, field, _ in STAGES)][
        :MOST_TURNS
    ]
    if not shown:
        return None
    most = max(getattr(times, field) or 0.0 for times in shown for _, _, field, _ in STAGES)
    rows: list[list[Content]] = []
    for index, times in enumerate(shown):
        whole = [_ms(getattr(times, field)) for _, _, field, _ in STAGES]
        rows.append([str(index + 1), waterfall(times, max(most, 100.0)), *whole])
    legend = tag("p", *(_key(tone, name) for tone, name, _, _ in STAGES), class_="legend", aria_hidden="true")
    heads = ("Answer", "After the caller’s last sound", *(name for _, name, _, _ in STAGES))
    return tag(
        "details",
        tag("summary", "By the server’s own record"),
        legend,
        table("Stages of each answer, ms after the caller’s last voiced sample", heads, rows, class_="waterfalls"),
        class_="fold",
        open=True,
    )


def waterfall(times: StageTimes, most_ms: float) -> Markup:
    drawn = []
    for index, (tone, _, field, needs) in enumerate(STAGES):
        to = getattr(times, field)
        if to is None:
            continue
        ready = [value for value in (getattr(times, need) for need in needs) if value is not None and value <= to]
        begin, end = max(0.0, *ready, 0.0), max(to, 0.0)
        place = {"x": _share(begin / most_ms), "width": _share(max((end - begin) / most_ms, 0.004))}
        drawn.append(tag("rect", class_=f"stage {tone}", y=str(1 + 4 * index), height="3", **place))
    return tag("svg", *drawn, class_="waterfall", aria_hidden="true", focusable="false")


def _key(tone: str, name: str) -> Markup:
    return tag("span", tag("i", class_=f"key {tone}"), name, class_="entry")


def _worst_moment(call: CallOutcome) -> float:
    """Where in the recording it is best to begin, in ms: the turn that went worst."""

    def badness(turn: TurnOutcome) -> tuple[bool, float]:
        silent = turn.answer_expected and turn.voice_to_voice_ms is None
        times = (
            turn.voice_to_voice_ms or 0.0,
            2 * (turn.stop_ms or 0.0),
            turn.talked_on_ms or 0.0,
            50.0 * turn.late_frames,
        )
        return silent, max(times)

    return max(call.turns, key=badness).in_call_ms if call.turns else 0.0


def _over(value: float | None, limit: float | bool | None) -> bool:
    return value is not None and limit is not None and not isinstance(limit, bool) and value > limit


def _ms(value: float | None) -> str | None:
    return None if value is None else say_ms(value)


def _share(share: float) -> str:
    return f"{number(share * 100)}%"
