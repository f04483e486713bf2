"""What a call was like: the ``--json`` document, and the same for a person.

The document is one JSON object, stable: fields are added, never renamed or taken away; all of them are always there,
null where there is nothing to say. Times are ms, read from the recorded audio as it was heard.
``docs/loadtest/call-report.md`` explains every field.
"""

from __future__ import annotations

import msgspec

_TRANSPORT_NAMES = {
    "websocket": "WebSocket",
    "webrtc": "WebRTC",
    "sip": "SIP",
    "twilio": "Twilio Media Streams",
    "audiosocket": "AudioSocket",
}


class TurnReport(msgspec.Struct, frozen=True):
    """One thing the caller said, and what came of it."""

    said_text: str | None
    """What the caller spoke; null for a WAV file."""
    heard_text: str | None
    """The gateway's transcript of it; null where the wire has none."""
    agent_text: str | None
    """The caller's own speech-to-text of the answer as recorded; null without the extra or a voiced answer."""
    agent_transcript: str | None
    """The gateway's text of the answer, whole even where the caller interrupted it."""
    voice_to_voice_ms: float | None
    """Last voiced sample of the caller to the first of the agent's answer; null if there was none."""
    stop_ms: float | None
    """Interruptions: the caller's onset to the agent's last voiced sample before silence; null if it was silent."""
    late_frames: int
    """20 ms playout slots missed in this turn."""
    pressed_keys: str | None = None
    """Null where the caller spoke."""


class GreetingReport(msgspec.Struct, frozen=True):
    """What the agent said before the caller did."""

    agent_text: str | None
    agent_transcript: str | None
    late_frames: int


class SetupReport(msgspec.Struct, frozen=True):
    """Where the time of a call's set-up went: ms after the first attempt (WebRTC: after the offer was posted); null for
    what never came, or is no step of the transport."""

    answered_ms: float | None
    """The answer was there: of HTTP, of SIP (200), of the upgrade or the TCP connection."""
    connected_ms: float | None
    """WebRTC: ICE and DTLS were through."""
    channel_open_ms: float | None
    """WebRTC."""
    first_audio_ms: float | None
    """The first audio came."""
    trying_ms: float | None = None
    """SIP: the first response."""
    ringing_ms: float | None = None
    """SIP: 180 or another response of progress."""


class MediaReport(msgspec.Struct, frozen=True):
    """What became of the agent's RTP on its way to the caller's ear."""

    packets_received: int
    packets_lost: int
    """Not there at their time, and concealed."""
    packets_late: int
    """Of those, came after all."""
    packets_reordered: int
    packets_duplicate: int
    concealed_ms: int
    skipped_ms: int
    """Of silence, to make up for delay."""


class BufferReport(msgspec.Struct, frozen=True):
    """What became of the agent's sound in a far buffer: a carrier's, or Asterisk's."""

    received_ms: int
    most_queued_ms: int
    """The most that waited to be heard at one time."""
    dropped_ms: int
    """More was sent than fitted."""
    clears: int
    """How often the agent emptied it."""
    cleared_ms: int
    marks_returned: int
    """Marks that were told back, played or cleared."""


class CallReport(msgspec.Struct, frozen=True):
    answered: bool
    """The agent was heard to answer the caller (with no turns: to greet)."""
    setup_ms: float | None
    """From the first connection attempt to ``session.created`` (of phones: until the call was answered, or its stream
    had begun); null if it never came."""
    end_cause: str
    """hangup, agent_hangup, time_limit, busy, refused, unauthorized, forbidden, not_found, no_media, no_session,
    stalled or connection_lost."""
    recording: str | None
    """The stereo WAV: caller left, agent right as heard."""
    turns: list[TurnReport]
    greeting: GreetingReport | None
    call_id: str | None
    """The call's id on the wire: the session's, Call-ID, callSid, the UUID."""
    caller_lag_ms: float
    """Worst lateness of the simulated caller itself; distrust times where it is large."""
    errors: list[str]
    """``error`` events and malformed messages the server sent, the first 100."""
    problem: str | None
    """For a person: why the call failed or ended early."""
    transport: str = "websocket"
    """websocket, webrtc, sip, twilio or audiosocket."""
    called: str | None = None
    """The address that was called."""
    setup: SetupReport | None = None
    """Null over the WebSocket."""
    media: MediaReport | None = None
    """Null where there is no RTP."""
    buffer: BufferReport | None = None
    """Null but for Twilio and AudioSocket."""
    keys_heard: str | None = None
    """The keys that the agent pressed."""
    transferred_to: str | None = None
    """Where the agent handed the caller over to; the caller notes it, and calls nobody."""


def to_json(report: CallReport) -> str:
    """The document, indented, without a closing newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def to_text(report: CallReport) -> str:
    """The same for a person, several lines."""
    lines = [f"{_outcome(report)}, ended: {report.end_cause}"]
    if report.called:
        lines.insert(0, f"called {report.called} over {_TRANSPORT_NAMES.get(report.transport, report.transport)}")
    if report.problem:
        lines.append(f"  {report.problem}")
    if report.setup is not None:
        lines.append(f"set-up  {_steps(report.setup, report.transport)}")
    if report.greeting is not None:
        lines.append(f"agent   {_words(report.greeting.agent_text, report.greeting.agent_transcript, sound=True)}")
    for turn in report.turns:
        heard = "" if turn.heard_text is None else f"   [heard: {turn.heard_text}]"
        said = turn.said_text or (f"(keys) {turn.pressed_keys}" if turn.pressed_keys else "(recording)")
        lines.append(f"caller  {said}{heard}")
        sound = turn.voice_to_voice_ms is not None
        lines.append(f"agent   {_words(turn.agent_text, turn.agent_transcript, sound=sound)}")
        times = [f"voice to voice {_ms(turn.voice_to_voice_ms)}"]
        if turn.stop_ms is not None:
            times.append(f"silent {_ms(turn.stop_ms)} after the interruption began")
        if turn.late_frames:
            times.append(f"{turn.late_frames} late frames")
        lines.append(f"        {', '.join(times)}")
    lines += [f"error   {error}" for error in report.errors]
    if report.media is not None and (report.media.packets_lost or report.media.packets_late):
        media = report.media
        lines.append(
            f"media   {media.packets_lost} packets were not there in time ({media.packets_late} came late), "
            f"{media.packets_received} came; {media.concealed_ms} ms concealed"
        )
    if report.buffer is not None:
        buffer = report.buffer
        dropped = f", {buffer.dropped_ms} ms dropped" if buffer.dropped_ms else ""
        cleared = f", cleared {buffer.clears} times ({buffer.cleared_ms} ms)" if buffer.clears else ""
        lines.append(f"buffer  up to {buffer.most_queued_ms} ms queued{dropped}{cleared}")
    if report.keys_heard:
        lines.append(f"the agent pressed {report.keys_heard}")
    if report.transferred_to:
        lines.append(f"transferred to {report.transferred_to}")
    if report.recording:
        lines.append(f"recorded to {report.recording}")
    return "\n".join(lines)


def _outcome(report: CallReport) -> str:
    if report.setup_ms is None:
        return "answered" if report.answered else "NOT ANSWERED"
    after = f"after {report.setup_ms:.0f} ms"
    return f"answered {after}" if report.answered else f"NO ANSWER HEARD, though the call was up {after}"


def _words(heard: str | None, transcript: str | None, *, sound: bool) -> str:
    if heard or transcript:
        return heard or f"(by its own text) {transcript}"
    return "(a sound, no words made out)" if sound else "(nothing)"


def _steps(setup: SetupReport, transport: str) -> str:
    steps = {"answered": setup.answered_ms, "first audio": setup.first_audio_ms}
    if transport == "webrtc":
        media = {"media connected": setup.connected_ms, "channel open": setup.channel_open_ms}
        steps = {"answered": setup.answered_ms, **media, "first audio": setup.first_audio_ms}
    elif transport == "sip":
        steps = {"first response": setup.trying_ms, "ringing": setup.ringing_ms, **steps}
    return ", ".join(f"{step} after {_ms(at)}" for step, at in steps.items())


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
