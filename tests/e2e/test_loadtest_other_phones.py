"""The load test's callers at the doors of telephony servers that are none of ours: sipp and baresip, over loopback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.call import CallPlan, CallTape, EndCause, PhoneOptions
from loadtest.measured_call import fate_of
from loadtest.outcome import Fate
from loadtest.placing import place_planned_call
from loadtest.script import Patience, Say, Step, conversation
from tests.e2e.baresip_peer import needs_baresip, phone
from tests.e2e.ports import LOOPBACK, bound, free_port
from tests.e2e.sip_rig import ALIKE, in_parts, likeness
from tests.e2e.sipp_callee import SDP, bye, pause, play, recv, reinvite, remember_parties, send, sipp
from tests.e2e.sipp_peer import PCAPS, launched, needs_sipp
from tests.loadtest.honesty_rig import counts_add_up, judge, shown_by
from tests.loadtest.test_sip_call import RATE_HZ, line

pytestmark = pytest.mark.e2e

QUICK = Patience(greeting_ms=600, answer_ms=500, pause_ms=200, stalled_ms=800, agent_turn_ms=3_000)
SPOKEN = line(ms=600)

RINGS = (recv("INVITE"), send("100 Trying", tag=False), send("180 Ringing"))
ANSWERS = (send("200 OK", sdp=True), recv("ACK"))
HUNG_UP = (recv("BYE"), send("200 OK", tag=False))
CHALLENGE = 'Digest realm="pbx", nonce="n1", algorithm=MD5, qop="auth"'
BOTH = SDP.replace("RTP/AVP 0\n", "RTP/AVP 0 8\n")
OTHER = SDP.replace("RTP/AVP 0\n", "RTP/AVP 8\n").replace("0 PCMU", "8 PCMA")

SCENARIO = """
name: quick
about: Say one thing.
transports: [sip]
length_s: 3
arrivals: {pattern: burst, calls: 3, every_s: 10, ramp_s: 0, for_s: 1}
patience: {greeting_ms: 500, answer_ms: 1000, pause_ms: 400}
expect: {answer_within_ms: null, setup_within_ms: 2000, max_late_share: 0.05}
steps:
  - wait_agent
  - say: "Stop."
  - wait_agent
"""


async def call(port: int, *steps: Step, **options: str) -> CallTape:
    plan = CallPlan(
        f"sip:bob@{LOOPBACK}:{port}",
        steps or conversation([SPOKEN]),
        patience=QUICK,
        rate_hz=RATE_HZ,
        phone=PhoneOptions(**options),  # type: ignore[arg-type]
    )
    return await place_planned_call(plan)


def fate(tape: CallTape) -> Fate:
    return fate_of(tape.end_cause, up=tape.setup_ms is not None, agent_may_end=False)


@needs_sipp
@pytest.mark.timeout(60)
async def test_a_load_test_of_an_echo_says_that_it_talks_while_it_is_talked_to(tmp_path: Path) -> None:
    port = free_port()
    words = [
        "-sn",
        "uas",
        "-rtp_echo",
        "-i",
        LOOPBACK,
        "-p",
        str(port),
        "-mi",
        LOOPBACK,
        "-mp",
        str(free_port(above=3)),
    ]
    async with launched(tmp_path, *words, "-nostdin", "-timeout", "50s"):
        await bound(port)
        judged = await judge(tmp_path / "run", SCENARIO, f"sip:bob@{LOOPBACK}:{port}", metrics=None, codes=None)
    report = judged.report
    assert counts_add_up(judged)
    assert (report.calls.completed, report.end_causes, report.problems) == (3, {"hangup": 3}, {})
    with shown_by(judged):
        assert report.faults == {"cut_in": 3}
        assert judged.is_not_good, judged.said
        assert report.media.lost == 0


@needs_sipp
async def test_one_that_rings_and_echoes_is_heard(tmp_path: Path) -> None:
    async with sipp(tmp_path, *RINGS, pause(200), *ANSWERS, *HUNG_UP, echoes=True) as port:
        tape = await call(port)
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    assert tape.setup is not None
    assert tape.setup.ringing_ms is not None
    assert (tape.setup.answered_ms or 0.0) >= tape.setup.ringing_ms + 100
    assert tape.heard.frames_due == pytest.approx(600 // 20, abs=2)


@needs_sipp
@pytest.mark.parametrize(
    ("status", "cause", "named"),
    [
        ("480 Temporarily Unavailable", EndCause.BUSY, Fate.REFUSED),
        ("486 Busy Here", EndCause.BUSY, Fate.REFUSED),
        ("503 Service Unavailable", EndCause.BUSY, Fate.REFUSED),
        ("603 Decline", EndCause.BUSY, Fate.REFUSED),
        ("302 Moved Temporarily", EndCause.REFUSED, Fate.FAILED),
        ("500 Server Internal Error", EndCause.REFUSED, Fate.FAILED),
        ("488 Not Acceptable Here", EndCause.NO_MEDIA, Fate.FAILED),
    ],
)
async def test_one_that_says_no(tmp_path: Path, status: str, cause: EndCause, named: Fate) -> None:
    async with sipp(tmp_path, *RINGS, send(status), recv("ACK")) as port:
        tape = await call(port)
    assert (tape.end_cause, fate(tape)) == (cause, named)
    assert status in (tape.problem or "")


@needs_sipp
async def test_one_that_asks_for_a_password(tmp_path: Path) -> None:
    asked = (recv("INVITE"), send("401 Unauthorized", f"WWW-Authenticate: {CHALLENGE}"), recv("ACK"))
    invited, ended = (
        recv(method, header="Authorization:", holds="username=.bob.*response=") for method in ("INVITE", "BYE")
    )
    goodbye = (recv("BYE"), send("401 Unauthorized", f"WWW-Authenticate: {CHALLENGE}", tag=False), ended, HUNG_UP[1])
    async with sipp(tmp_path, *asked, invited, *ANSWERS, *goodbye) as port:
        tape = await call(port, user="bob", password="sesame")
    assert (tape.end_cause, fate(tape), tape.log.errors) == (
        EndCause.HANGUP,
        Fate.COMPLETED,
        ["no audio came: not one RTP packet"],
    )
    async with sipp(tmp_path, *asked) as port:
        tape = await call(port)
    assert (tape.end_cause, fate(tape)) == (EndCause.UNAUTHORIZED, Fate.FAILED)
    assert "--password" in (tape.problem or "")


@needs_sipp
async def test_one_that_hangs_up_in_the_middle_of_a_call_drops_it(tmp_path: Path) -> None:
    async with sipp(tmp_path, remember_parties(), *ANSWERS, pause(400), bye()) as port:
        tape = await call(port)
    assert (tape.end_cause, fate(tape)) == (EndCause.AGENT_HANGUP, Fate.DROPPED)


@needs_sipp
async def test_one_that_wants_another_codec_in_the_middle_of_a_call(tmp_path: Path) -> None:
    steps = (remember_parties(), *ANSWERS, pause(300), reinvite(OTHER), *HUNG_UP)
    async with sipp(tmp_path, *steps, echoes=True) as port:
        tape = await call(port)
    assert (tape.end_cause, tape.problem) == (EndCause.HANGUP, None)
    assert tape.heard.frames_due == pytest.approx(600 // 20, abs=3)


@needs_sipp
async def test_sound_before_the_answer_is_no_part_of_the_call(tmp_path: Path) -> None:
    """It plays A-law where mu-law is spoken to it, and says where its media is in a 183 alone."""
    early = send("183 Session Progress", sdp=True).replace(SDP, BOTH)
    steps = (recv("INVITE"), early, play(PCAPS / "g711a.pcap"), pause(1_200), send("200 OK"), recv("ACK"), *HUNG_UP)
    async with sipp(tmp_path, *steps) as port:
        tape = await call(port)
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    assert tape.media is not None
    assert tape.heard.frames_due > 20
    assert tape.media.packets_received <= len(tape.agent) // (RATE_HZ // 50) + 10


@needs_baresip
async def test_a_phone_that_picks_up_by_itself_is_heard_and_hears(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    said = np.concatenate((np.zeros(1_600), rng.normal(0, 4_000, 6_400), np.zeros(80_000))).astype(np.int16)
    assert isinstance(SPOKEN, Say)
    async with phone(tmp_path, said) as bob:
        tape = await call(bob.port)
        await bob.until("CALL_CLOSED")
        heard = bob.heard()
    assert (tape.end_cause, tape.problem, tape.log.errors, fate(tape)) == (EndCause.HANGUP, None, [], Fate.COMPLETED)
    assert tape.media is not None
    assert tape.media.packets_lost == 0
    assert in_parts(said[1_600:8_000], lambda part: likeness(part, tape.agent) >= ALIKE)
    assert in_parts(SPOKEN.line.pcm, lambda part: likeness(part, heard) >= ALIKE)


@needs_baresip
async def test_a_phone_that_hangs_up_and_one_that_takes_no_such_codec(tmp_path: Path) -> None:
    quiet = np.zeros(4_000, dtype=np.int16)  # its microphone ends, and then so does its call
    async with phone(tmp_path, quiet) as bob:
        tape = await call(bob.port)
    assert (tape.end_cause, fate(tape)) == (EndCause.AGENT_HANGUP, Fate.DROPPED)
    async with phone(tmp_path, quiet, "g722") as bob:
        tape = await call(bob.port)
    assert (tape.end_cause, fate(tape)) == (EndCause.NO_MEDIA, Fate.FAILED)
    assert "488" in (tape.problem or "")
