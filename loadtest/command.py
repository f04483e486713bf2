"""``offhook call URL``: place one call and report it.

:func:`add_call_command` puts the command on a typer application; whoever owns that application says where a
speech-to-text model for the caller's ears is, so this package needs to know of no engine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from loadtest import script
from loadtest.address import CallAddress, call_address, shown_url
from loadtest.call import SLOT_MS, CallPlan, CallTape, MediaRoute, PhoneOptions, Transport
from loadtest.hearing import hear_spans, open_hearing
from loadtest.measure import Span, TurnMark, TurnTiming, measure_turns, voiced_spans
from loadtest.phone_options import AuthToken, Codec, Parameters, Password, SignedUrl, User
from loadtest.placing import place_planned_call
from loadtest.report import CallReport, GreetingReport, TurnReport, to_json, to_text
from loadtest.script import Interrupt, Patience, Step, conversation
from loadtest.sip_call import check_phone
from loadtest.voice import DEFAULT_VOICE, VoiceError, read_line, say_line
from streaming.audio.opus import OpusUnavailable
from streaming.audio.wav import encode_wav

_LINES_KEY = "loadtest.lines"


class CallUsageError(Exception):
    """The call can't be placed as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class PlayWav:
    path: Path


@dataclass(frozen=True, slots=True)
class Press:
    keys: str


Line = Say | PlayWav | Press


@dataclass(frozen=True, slots=True)
class CallOptions:
    """One call. The barge-in, if any, cuts the answer to the first line, or the greeting if there are no lines; it is a
    turn of its own. ``hearing_model`` is asked (off the loop, after the call) for a CTranslate2 Whisper directory.
    ``ephemeral``, ``route`` and ``phone`` are those of :class:`~loadtest.call.CallPlan`."""

    url: str
    lines: tuple[Line, ...] = ()
    agent: str | None = None
    key: str | None = None
    barge_in_after_ms: float | None = None
    barge_in_text: str | None = None
    barge_in_keys: str | None = None
    record: Path | None = None
    max_seconds: float = 120.0
    voice: str = DEFAULT_VOICE
    hearing_model: Callable[[], Path | None] | None = None
    patience: Patience | None = None
    ephemeral: bool = False
    route: MediaRoute | None = None
    phone: PhoneOptions = field(default_factory=PhoneOptions)


async def place_call(options: CallOptions) -> CallReport:
    """Place the call, write its recording, measure and hear it.

    A call that fails is reported, not raised. Raises :class:`CallUsageError` for options that make no call (a line that
    can't be spoken, a bad URL, a recording that can't be written, no libopus for WebRTC).
    """
    if (options.barge_in_after_ms is None) != (options.barge_in_text is None and options.barge_in_keys is None):
        raise CallUsageError("a barge-in needs both its time and its words or keys")
    if options.barge_in_text is not None and options.barge_in_keys is not None:
        raise CallUsageError("a barge-in is spoken or pressed, not both")
    if options.key is not None and not options.key.isprintable():
        raise CallUsageError("a key is one line of printable text")
    if options.record is not None and not options.record.parent.is_dir():
        raise CallUsageError(f"cannot record to {options.record}: no such folder")
    try:
        address = call_address(options.url, options.agent)
        if address.transport is Transport.SIP:
            check_phone(options.phone)
        steps = await asyncio.to_thread(_steps, options, address.rate_hz)
    except (VoiceError, ValueError) as error:
        raise CallUsageError(str(error)) from error
    if options.ephemeral and address.transport is not Transport.WEBRTC:
        raise CallUsageError("a client secret is what browsers call with: --ephemeral goes with http:// or https://")
    if address.transport in (Transport.WEBSOCKET, Transport.WEBRTC) and _presses(options):
        raise CallUsageError(
            "the Realtime protocol has no keys: --press goes with sip:, twilio+ws:// or audiosocket://"
        )
    plan = CallPlan(
        options.url,
        steps,
        agent=options.agent,
        key=options.key,
        max_seconds=options.max_seconds,
        patience=options.patience,
        ephemeral=options.ephemeral,
        route=options.route,
        rate_hz=address.rate_hz,
        phone=options.phone,
    )
    try:
        tape = await place_planned_call(plan)
    except OpusUnavailable as error:
        raise CallUsageError(str(error)) from error
    try:
        return await asyncio.to_thread(_report, options, address, tape)
    except OSError as error:
        raise CallUsageError(f"cannot write the recording: {error}") from error


def _steps(options: CallOptions, rate_hz: int) -> tuple[Step, ...]:
    turns: list[script.Say | script.Press | Interrupt] = []
    for line in options.lines:
        what = _words(line, options.voice, rate_hz)
        turns.append(what if isinstance(what, script.Press) else script.Say(what))
    if options.barge_in_after_ms is not None:
        cut = Say(options.barge_in_text or "") if options.barge_in_keys is None else Press(options.barge_in_keys)
        turns.insert(min(1, len(turns)), Interrupt(_words(cut, options.voice, rate_hz), options.barge_in_after_ms))
    return conversation(turns)


def _words(line: Line, voice: str, rate_hz: int) -> script.Line | script.Press:
    match line:
        case Say(text):
            pcm = say_line(text, rate_hz, voice)
        case PlayWav(path):
            pcm = read_line(path, rate_hz)
        case Press(keys):
            return script.Press(keys)
    return script.Line(line.text if isinstance(line, Say) else None, pcm, len(pcm) * 1000 / rate_hz)


def _presses(options: CallOptions) -> bool:
    return options.barge_in_keys is not None or any(isinstance(line, Press) for line in options.lines)


def _report(options: CallOptions, address: CallAddress, tape: CallTape) -> CallReport:
    recording = None
    if options.record is not None and tape.setup_ms is not None:
        options.record.write_bytes(encode_wav([tape.caller, tape.agent], tape.rate_hz))
        recording = str(options.record)
    timings = measure_turns(tape.caller, tape.agent, tape.rate_hz, tape.marks, noise_dbfs=tape.noise_dbfs)
    greeting = Span(0, timings[0].agent.start if timings else len(tape.agent))
    heard: list[str | None] = [None] * (len(timings) + 1)
    if options.hearing_model is not None and len(tape.agent):
        hearing = open_hearing(options.hearing_model())
        if hearing is not None:
            spans = [greeting, *(timing.agent for timing in timings)]
            heard = hear_spans(tape.agent, tape.rate_hz, spans, hearing, tape.noise_dbfs)
    greeted = bool(voiced_spans(tape.agent[greeting.start : greeting.end], tape.rate_hz, noise_dbfs=tape.noise_dbfs))
    spoke = bool(options.lines) or options.barge_in_after_ms is not None
    answered = any(timing.voice_to_voice_ms is not None for timing in timings) if spoke else greeted
    first = tape.marks[0].start if tape.marks else len(tape.agent)
    return CallReport(
        answered=answered,
        setup_ms=_rounded(tape.setup_ms),
        end_cause=str(tape.end_cause),
        recording=recording,
        turns=[
            _turn_report(index, mark, timing, heard[index + 1], tape)
            for index, (mark, timing) in enumerate(zip(tape.marks, timings, strict=True))
        ],
        greeting=GreetingReport(heard[0], tape.log.agent_transcript(-1), _late(tape, 0, first)) if greeted else None,
        call_id=tape.log.call_id,
        caller_lag_ms=round(tape.caller_lag_ms, 1),
        errors=tape.log.errors,
        problem=tape.problem,
        transport=str(address.transport),
        called=shown_url(address.url),
        setup=tape.setup,
        media=tape.media,
        buffer=tape.buffer,
        keys_heard=tape.log.keys_heard or None,
        transferred_to=tape.log.transferred_to,
    )


def _turn_report(index: int, mark: TurnMark, timing: TurnTiming, agent_text: str | None, tape: CallTape) -> TurnReport:
    start = mark.start
    end = tape.marks[index + 1].start if index + 1 < len(tape.marks) else len(tape.agent)
    return TurnReport(
        said_text=None if mark.keys else mark.text,
        heard_text=tape.log.heard_text(index),
        agent_text=agent_text,
        agent_transcript=tape.log.agent_transcript(index),
        voice_to_voice_ms=_rounded(timing.voice_to_voice_ms),
        stop_ms=_rounded(timing.stop_ms),
        late_frames=_late(tape, start, end),
        pressed_keys=mark.text if mark.keys else None,
    )


def _late(tape: CallTape, start: int, end: int) -> int:
    samples = tape.rate_hz * SLOT_MS // 1000
    return sum(start <= slot * samples < end for slot in tape.late_slots)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


_LINE_OPTIONS: dict[str, Callable[[str], Line]] = {"say": Say, "wav": lambda path: PlayWav(Path(path)), "press": Press}


class OrderedLines(TyperCommand):
    """Keeps the order of ``--say``, ``--wav`` and ``--press`` among each other, which option parsing loses: it collects
    each option's values by itself. The parser does tell the order of its options, one entry an occurrence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        rest = {name: iter(values.get(name) or ()) for name in _LINE_OPTIONS}
        ctx.meta[_LINES_KEY] = tuple(
            _LINE_OPTIONS[option.name](next(rest[option.name])) for option in order if option.name in rest
        )
        return super().parse_args(ctx, args)


def custom_parameters(pairs: Sequence[str]) -> dict[str, str]:
    """Of ``NAME=VALUE`` each. Raises :class:`typer.BadParameter`."""
    parameters = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in parameters or any("=" not in pair for pair in pairs):
        raise typer.BadParameter("a parameter is NAME=VALUE")
    return parameters


def add_call_command(app: typer.Typer, hearing_model: Callable[[], Path | None]) -> None:
    """Put ``call`` on ``app``. Exit codes: 0 answered, 1 never answered, 2 the call can't be placed as asked."""

    @app.command("call", cls=OrderedLines)
    def call(
        ctx: typer.Context,
        url: Annotated[
            str,
            typer.Argument(
                help="ws:// or wss:// address of a Realtime endpoint, http:// or https:// for WebRTC; of phones "
                "sip:agent@host:port (or ;transport=tcp), twilio+ws://host/path, audiosocket://host:port/UUID."
            ),
        ],
        say: Annotated[list[str] | None, typer.Option(help="Say this; may be given several times.")] = None,
        wav: Annotated[list[Path] | None, typer.Option(help="Play this WAV; may be given several times.")] = None,
        press: Annotated[
            list[str] | None, typer.Option(help="Press these keys (phones); may be given several times.")
        ] = None,
        agent: Annotated[str | None, typer.Option(help="The agent to ask for.")] = None,
        key: Annotated[str | None, typer.Option(envvar="OFFHOOK_KEY", help="Bearer key.")] = None,
        ephemeral: Annotated[
            bool, typer.Option("--ephemeral", help="Buy a client secret with the key and call with that (WebRTC).")
        ] = False,
        barge_in_after: Annotated[
            float | None, typer.Option(min=0, help="Interrupt this many ms after the first answer is first heard.")
        ] = None,
        barge_in_say: Annotated[str | None, typer.Option(help="The words to interrupt with.")] = None,
        barge_in_press: Annotated[str | None, typer.Option(help="The keys to interrupt with (phones).")] = None,
        record: Annotated[Path | None, typer.Option(help="Write a stereo WAV: caller left, agent right.")] = None,
        json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
        max_seconds: Annotated[float, typer.Option(min=1, max=3600, help="Hang up after this long.")] = 120.0,
        voice: Annotated[
            str, typer.Option(help="Which voice speaks the shipped lines: slt, rms or awb.")
        ] = DEFAULT_VOICE,
        caller: Annotated[str | None, typer.Option(help="The number that calls (phones).")] = None,
        user: User = None,
        password: Password = None,
        codec: Codec = None,
        parameter: Parameters = None,
        auth_token: AuthToken = None,
        signed_url: SignedUrl = None,
    ) -> None:
        """Call an agent, speak to it in real time, and report what was heard and how fast."""
        if barge_in_after is not None and barge_in_say is None and barge_in_press is None:
            barge_in_say = "Wait, one moment please."
        options = CallOptions(
            url,
            ctx.meta[_LINES_KEY],
            agent=agent,
            key=key,
            barge_in_after_ms=barge_in_after,
            barge_in_text=barge_in_say,
            barge_in_keys=barge_in_press,
            record=record,
            max_seconds=max_seconds,
            voice=voice,
            hearing_model=hearing_model,
            ephemeral=ephemeral,
            phone=PhoneOptions(
                caller, user, password, codec, custom_parameters(parameter or ()), auth_token, signed_url
            ),
        )
        try:
            report = asyncio.run(place_call(options))
        except CallUsageError as error:
            typer.echo(f"offhook call: {error}", err=True)
            raise typer.Exit(2) from error
        if json:
            sys.stdout.write(to_json(report) + "\n")
            if report.problem:
                typer.echo(report.problem, err=True)
        else:
            typer.echo(to_text(report), err=True)
        if not report.answered:
            raise typer.Exit(1)
