"""Scenarios: what callers do, how they come, what network and what ears they have, what the server is held to.

A scenario is a YAML file, of the library (``loadtest/scenarios``) or of one's own; ``docs/loadtest/scenarios.md``
describes every key. A caller is made from its number and the run's seed alone, so two runs offer the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from random import Random
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from loadtest.arrivals import Pattern
from loadtest.call import Transport
from loadtest.caller_sound import MAX_ECHO_MS, CallerSound, Echo, Noise
from loadtest.network import Network, PacketFate
from loadtest.noise import LOOP_S, NoiseKind, noise_loop
from loadtest.phone_chain import PhoneChain
from loadtest.phone_wire import PHONE_PATIENCE
from loadtest.scenario_file import ScenarioError, ScenarioFile, find_scenario, read_scenario_file
from loadtest.scenario_steps import (
    Milliseconds,
    Seconds,
    SecondsRange,
    StepModels,
    Strict,
    build_steps,
    presses_keys,
    texts_of,
)
from loadtest.script import Patience, Step
from loadtest.tcp_hold import Stalls
from loadtest.voice import VoiceError, parse_voice, shipped_voices
from loadtest.voices import find_voices, speaker, speech_level_dbfs, spoken_line
from streaming.audio.code_words import code_word, speak

Share = Annotated[float, Field(ge=0, le=1)]

_MOST_MISTAKES = 20

PHONES = (Transport.SIP, Transport.TWILIO, Transport.AUDIOSOCKET)
"""Transports with keys."""


@dataclass(frozen=True, slots=True)
class CallerScript:
    """One caller. ``code`` is its code word, None in a run without; ``sound`` is for one call only."""

    number: int
    steps: tuple[Step, ...]
    voice: str
    code: str | None = None
    sound: CallerSound | None = None
    patience: Patience | None = None


class Arrivals(Strict):
    """How callers come; a run may say otherwise. See :mod:`loadtest.arrivals`."""

    pattern: Pattern = Pattern.LINES
    calls: Annotated[int, Field(ge=1, le=100_000)] = 10
    """At once: on lines, on average, or in a burst."""
    ramp_s: Seconds = 5.0
    for_s: Annotated[float, Field(gt=0, le=604_800)] = 60.0
    every_s: Annotated[float, Field(gt=0)] | None = None
    """Of bursts."""


class Expect(Strict):
    """What a good call is. None: it does not matter."""

    answer_within_ms: Milliseconds | None = 3_000.0
    stop_within_ms: Milliseconds | None = 400.0
    """Two or three syllables: what a caller takes for "it stopped". Who is talked over for longer begins again."""
    setup_within_ms: Milliseconds | None = 2_000.0
    max_late_share: Share | None = 0.001
    codes: bool = True
    """Own code words come back, in runs that have them."""
    refused_ok: bool = False
    """A refusal within :attr:`setup_within_ms` is a good answer: more is offered than the server takes."""
    agent_ends: bool = False
    """The agent says goodbye, not the caller."""


class PatienceModel(Strict):
    """Where the transport's own does not do."""

    greeting_ms: Milliseconds | None = None
    answer_ms: Milliseconds | None = None
    pause_ms: Milliseconds | None = None
    stalled_ms: Milliseconds | None = None
    agent_turn_ms: Milliseconds | None = None


class PhoneModel(Strict):
    band: bool = True
    agc: bool = True
    mulaw: bool = True


class NoiseModel(Strict):
    kind: NoiseKind
    snr_db: Annotated[float, Field(ge=-10, le=80)]


class EchoModel(Strict):
    loss_db: Annotated[float, Field(ge=0, le=80)]
    delay_ms: Annotated[float, Field(ge=20, le=MAX_ECHO_MS)]


class PacketsModel(Strict):
    """One direction of RTP; see :class:`loadtest.network.PacketFate`."""

    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    burst: Annotated[float, Field(ge=1, le=1_000)] | None = None
    delay_ms: Milliseconds = 0.0
    jitter_ms: Milliseconds = 0.0
    reorder: Share = 0.0
    reorder_ms: Milliseconds = 30.0
    duplicate: Share = 0.0


class StallsModel(Strict):
    """Of a TCP connection; see :class:`loadtest.network.Stalls`."""

    every_s: Annotated[float, Field(gt=0, le=86_400)]
    for_s: SecondsRange = (0.3, 2.0)


class NetworkModel(Strict):
    up: PacketsModel = PacketsModel()
    down: PacketsModel = PacketsModel()
    stalls: StallsModel | None = None


class CallerModel(Strict):
    """A kind of caller. ``share`` is its weight among the others that are on its transport."""

    name: str
    share: Annotated[float, Field(gt=0)] = 1.0
    transports: tuple[Transport, ...] = tuple(Transport)
    steps: StepModels
    phone: PhoneModel | None = None
    noise: NoiseModel | None = None
    echo: EchoModel | None = None


class Scenario(Strict):
    """What :func:`load_scenario` gives. Either ``steps`` (all callers do the same) or ``callers`` (several kinds)."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)]
    about: str
    transports: tuple[Transport, ...] = tuple(Transport)
    """On which it makes sense."""
    arrivals: Arrivals = Arrivals()
    length_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """Planned length of a call."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Each call is longer or shorter by up to this share."""
    voices: tuple[str, ...] = ()
    """Empty: those of the shipped lines."""
    phone: PhoneModel | None = None
    noise: NoiseModel | None = None
    echo: EchoModel | None = None
    network: NetworkModel | None = None
    patience: PatienceModel | None = None
    linger_s: Seconds = 5.0
    """How long a caller that vanished keeps its socket."""
    expect: Expect = Expect()
    steps: StepModels | None = None
    callers: Annotated[tuple[CallerModel, ...], Field(max_length=50)] = ()

    @field_validator("voices")
    @classmethod
    def _known_voices(cls, voices: tuple[str, ...]) -> tuple[str, ...]:
        for voice in voices:
            try:
                tool, name = parse_voice(voice)
            except VoiceError as error:
                raise ValueError(str(error)) from error
            if tool is None and name not in shipped_voices():
                raise ValueError(f"no voice {voice!r} speaks the shipped lines: {', '.join(shipped_voices())}")
        return voices

    @model_validator(mode="after")
    def _one_way(self) -> Scenario:
        if (self.steps is None) == (not self.callers):
            raise ValueError("a scenario has steps, or callers that have them")
        for kind in self.kinds:
            if presses_keys(kind.steps) and not {*self.transports} & {*kind.transports} <= {*PHONES}:
                raise ValueError(f"keys are pressed on phones alone: transports: [{', '.join(PHONES)}]")
        return self

    @property
    def kinds(self) -> tuple[CallerModel, ...]:
        """The kinds of callers, with what the scenario says of all."""
        kinds = self.callers
        if self.steps is not None:
            kinds = (CallerModel(name=self.name, steps=self.steps),)
        common = {name: getattr(self, name) for name in ("phone", "noise", "echo")}
        return tuple(
            kind.model_copy(update={name: value for name, value in common.items() if getattr(kind, name) is None})
            for kind in kinds
        )

    def packets(self) -> Network | None:
        """What becomes of a call's packets; None where nothing does."""
        if self.network is None:
            return None
        stalls = self.network.stalls
        return Network(
            up=PacketFate(**self.network.up.model_dump()),
            down=PacketFate(**self.network.down.model_dump()),
            stalls=Stalls(stalls.every_s, stalls.for_s) if stalls is not None else None,
        )

    def check(self, transport: Transport) -> None:
        """Raises :class:`ScenarioError` where it makes no sense on this transport."""
        if transport not in self.transports or not self._on(transport):
            raise ScenarioError(f"{self.name} is for {', '.join(self.transports)}, not for {transport}")

    def _on(self, transport: Transport) -> list[CallerModel]:
        return [kind for kind in self.kinds if transport in kind.transports]

    def prepare(self, rate_hz: int, *, codes: bool = False) -> tuple[str, ...]:
        """Speak every line in every voice, so that :meth:`caller` is quick. Blocks, for seconds with a synthesiser.

        Returns what could not be had, for a person. Raises :class:`~loadtest.voice.VoiceError` if a line can't be
        spoken at all, :class:`ScenarioError` without a voice.
        """
        voices = find_voices(self.voices)
        for kind in self.kinds:
            for voice in voices.names:
                for text in texts_of(kind.steps):
                    spoken_line(text, voice, rate_hz, _chain(kind))
                _sound(kind, voice, rate_hz, Random(0))
        if codes:
            speak(code_word(0), rate_hz)  # what all words have in common is made with the first
        return voices.skipped

    def caller(
        self, number: int, seed: int, rate_hz: int, transport: Transport, *, code: str | None = None
    ) -> CallerScript:
        """The ``number``-th call's caller. ``code``: a word that it says too (the server's engines are fakes that say
        it back). Blocks where lines were not prepared. Raises as :meth:`prepare` and :meth:`check`."""
        self.check(transport)
        random = Random(f"caller {seed} {number}")
        kinds = self._on(transport)
        kind = random.choices(kinds, [kind.share for kind in kinds])[0]
        voice = random.choice(find_voices(self.voices).names)
        return CallerScript(
            number,
            build_steps(kind.steps, speaker(voice, rate_hz, _chain(kind), code), random),
            voice,
            code,
            _sound(kind, voice, rate_hz, random),
            self._patience(transport),
        )

    def _patience(self, transport: Transport) -> Patience | None:
        """None: the wire's own."""
        if self.patience is None:
            return None
        own = PHONE_PATIENCE if transport in PHONES else Patience()
        return replace(own, **self.patience.model_dump(exclude_none=True))


def _chain(kind: CallerModel) -> PhoneChain | None:
    return PhoneChain(**kind.phone.model_dump()) if kind.phone is not None else None


def _sound(kind: CallerModel, voice: str, rate_hz: int, random: Random) -> CallerSound | None:
    start = random.randrange(LOOP_S * rate_hz)
    if kind.noise is None and kind.echo is None:
        return None
    noise = None
    if kind.noise is not None:
        spoken_dbfs = speech_level_dbfs(tuple(texts_of(kind.steps)), voice, rate_hz, _chain(kind))
        loop = noise_loop(
            kind.noise.kind, rate_hz, round(spoken_dbfs - kind.noise.snr_db), narrow=kind.phone is not None
        )
        noise = Noise(loop, start)
    echo = Echo(kind.echo.loss_db, kind.echo.delay_ms) if kind.echo is not None else None
    return CallerSound(rate_hz, noise, echo)


def load_scenario(name_or_path: str) -> Scenario:
    """One of the library by its name, or a file. Blocks. Raises :class:`ScenarioError`, whose message says where."""
    return read_scenario(read_scenario_file(find_scenario(name_or_path)))


def read_scenario(file: ScenarioFile) -> Scenario:
    """Raises :class:`ScenarioError`."""
    try:
        return Scenario.model_validate(file.data)
    except ValidationError as error:
        told = [_mistake(file, dict(mistake)) for mistake in error.errors()[:_MOST_MISTAKES]]
        raise ScenarioError("\n".join(text for _, text in sorted(told, key=itemgetter(0)))) from error


def _mistake(file: ScenarioFile, mistake: dict[str, Any]) -> tuple[int, str]:
    """Its line, and the whole for a person."""
    where = mistake["loc"]
    said = str(mistake["msg"]).removeprefix("Value error, ")
    if mistake["type"] == "extra_forbidden":
        said = "no such key"
    elif mistake["type"] == "missing":
        said = "is missing"
    line = file.line(where)
    return line, f"{file.path.name}:{line}: {_path(where)}: {said}"


def _path(where: tuple[str | int, ...]) -> str:
    path = ""
    for before, key in zip((None, *where), where, strict=False):
        if key != before:  # the kind of a step is there twice: as its key, and as which of the kinds it is
            path += f"[{key}]" if isinstance(key, int) else f".{key}"
    return path.lstrip(".") or "the scenario"
