from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from loadtest.generator_messages import Counted
from loadtest.outcome import CallOutcome, Fate, TurnOutcome
from loadtest.progress import FAKE, PLAIN_EVERY_S, RECENT_TURNS, Progress, Tally, Terminal
from loadtest.readings import ServerReading


def counted(*, up: int = 0, offered: int = 0, p99_ms: float | None = None, share: float = 0.1) -> Counted:
    return Counted(
        at_s=1.0,
        offered=offered,
        up=up,
        cpu_share=share,
        rss_bytes=None,
        ticks=1,
        late_p99_ms=p99_ms,
        late_worst_ms=0.0,
        measuring=0,
    )


def outcome(fate: Fate = Fate.COMPLETED, faults: tuple[str, ...] = (), *latencies_ms: float | None) -> CallOutcome:
    turns = tuple(TurnOutcome(kind="say", at_s=0, in_call_ms=0, voice_to_voice_ms=ms) for ms in latencies_ms)
    return CallOutcome(
        number=0,
        transport="websocket",
        fate=fate,
        offered_s=0,
        ended_s=1,
        end_cause="hangup",
        turns=turns,
        frames_due=100,
        frames_late=1,
        faults=faults,
    )


def tally() -> Tally:
    known = Tally("talk", planned=30, length_s=60.0)
    known.generators = {0: counted(up=7, offered=10, p99_ms=1.5), 1: counted(up=6, offered=9, p99_ms=6.25, share=0.4)}
    for each in (outcome(Fate.COMPLETED, (), 500.0, 700.0, None), outcome(Fate.DROPPED, ("dropped",), 900.0)):
        known.ended(each)
    known.ended(outcome(Fate.REFUSED, ("refused",)))
    known.ended(outcome(Fate.ABANDONED))
    known.at_s = 12.4
    return known


def test_what_is_told() -> None:
    known = tally()
    known.server = ServerReading(at_s=12, cpu_cores=0.25, rss_bytes=2**27, loop_lag_ms=3.4)
    assert dict(known.rows()) == {
        "up": "13",
        "offered": "19 of 30",
        "ended": "1 good, 1 not good, 1 refused",
        "voice to voice": "p50 700 ms, p95 900 ms",
        "late frames": "1.00%",
        "callers themselves": "6.2 ms late (p99) VOID beyond 5 ms, 40% of a core, 2 processes",
        "server": "CPU 25% of a core, memory 128 MiB, loop lag 3 ms",
    }
    assert known.heading == "talk: 12 s of 60 s, 48 s to go"


def test_why_calls_fail_is_told_while_it_happens() -> None:
    known = tally()
    assert "last problem" not in dict(known.rows())
    known.ended(replace(outcome(Fate.FAILED, ("failed",)), problem="no answer at ws://h"))
    known.ended(outcome())
    assert dict(known.rows())["last problem"] == "no answer at ws://h"


def test_nothing_is_made_up_before_anything_is_known() -> None:
    known = Tally("talk", planned=3, length_s=5.0)
    rows = dict(known.rows())
    assert rows["voice to voice"] == "p50 -, p95 -"
    assert rows["late frames"] == "-"
    assert rows["callers themselves"] == "- late (p99), 0% of a core"
    assert "server" not in rows
    known.at_s = 6.0
    assert known.heading.endswith("waiting for the last calls")
    known.last_word = "hanging up"
    assert known.heading.endswith("hanging up")


def test_the_latencies_shown_are_bounded() -> None:
    known = Tally("talk", planned=1, length_s=1.0)
    known.ended(outcome(Fate.COMPLETED, (), *([1.0] * RECENT_TURNS), 900.0))
    assert len(known.latencies_ms) == RECENT_TURNS
    assert known.latencies_ms[-1] == 900.0


def shown(*, terminal: bool, quiet: bool = False, fake: bool = False) -> str:
    """A run of twelve seconds."""
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=terminal, width=120, color_system=None), quiet=quiet)
    known = tally()
    with progress.showing():
        for second in range(12):
            known.at_s, known.fake = float(second), fake
            progress.show(known)
        progress.say("a word [not markup]")
    return out.getvalue()


def test_without_a_terminal_there_is_a_line_every_few_seconds() -> None:
    lines = shown(terminal=False, fake=True).splitlines()
    assert lines[0] == FAKE
    assert lines[-1] == "a word [not markup]"
    assert [line.split(" s of")[0] for line in lines[1:-1]] == [f"talk: {at * PLAIN_EVERY_S:.0f}" for at in range(3)]
    assert lines[1].startswith("talk: 0 s of 60 s, 60 s to go | up 13 | offered 19 of 30 | ")


def test_on_a_terminal_a_table_is_drawn_and_engines_that_are_fakes_are_shouted_about() -> None:
    text = shown(terminal=True, fake=True)
    assert FAKE in text
    assert "voice to voice" in text
    assert FAKE not in shown(terminal=True)


def test_quiet_is_quiet() -> None:
    assert shown(terminal=True, quiet=True) == shown(terminal=False, quiet=True, fake=True) == ""


class Gone(io.StringIO):
    """What a terminal that was closed, or the pipe of a `head` that has seen enough, is like."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_goes_on_when_nobody_can_be_shown_it(terminal: bool) -> None:
    progress = Progress(Console(file=Gone(OSError(5, "input/output error")), force_terminal=terminal))
    known = tally()
    with progress.showing():
        progress.show(known)
        progress.say("a word")


def test_a_closed_pipe_ends_no_process_and_no_standard_output() -> None:
    console = Terminal()
    console.file = Gone(BrokenPipeError(32, "broken pipe"))
    Progress(console).say("a word")
