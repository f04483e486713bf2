"""What a run was like: the ``--json`` document of ``offhook loadtest``, which the HTML page is made of too.

One JSON object. ``version`` grows when a field changes its meaning or goes; fields are added without that. All of them
are always there, null where there is nothing to say. Times named ``_s`` are seconds of the run's own clock, those named
``_ms`` are read from recordings as they were heard. Ratios are 0 to 1. Percentiles are nearest-rank over the values
themselves; none is a mean of other percentiles. ``docs/loadtest/report.md`` defines every field and names its source.
"""

from __future__ import annotations

import enum

import msgspec

from loadtest.outcome import CallOutcome
from loadtest.readings import Base, GeneratorReading, GeneratorReport, Machine, ServerReport, Slope

VERSION = 1

MAX_TURN_POINTS = 20_000
MAX_CALL_DETAILS = 200
MAX_TIMELINE_POINTS = 1_800


class Verdict(enum.StrEnum):
    """Of a run; the values are part of the document."""

    GOOD = "good"
    NOT_GOOD = "not_good"
    VOID = "void"
    """The load test itself was late or broke: nothing that was measured can be held against the server."""
    INTERRUPTED = "interrupted"
    """Stopped by hand, and good until then."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``count`` values, in ms; null where there are none."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class CallCounts(msgspec.Struct, frozen=True, kw_only=True):
    """``offered`` is the sum of ``completed``, ``refused``, ``failed``, ``dropped``, ``abandoned`` and ``left``;
    ``accepted`` are those that came about."""

    offered: int = 0
    accepted: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0
    dropped: int = 0
    abandoned: int = 0
    left: int = 0
    good: int = 0
    most_up: int = 0
    """The most calls that were up at one time."""


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    voice_to_voice: Percentiles = Percentiles()
    stop: Percentiles = Percentiles()
    """Of interruptions while the agent spoke."""
    talked_on: Percentiles = Percentiles()
    setup: Percentiles = Percentiles()
    """Of calls that came about."""
    refusal: Percentiles = Percentiles()
    """How long a refused caller waited for its no."""


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """Who was late: the load test or the server. Both sides' own deadlines, of frames of 20 ms."""

    generator_p99_ms: float | None = None
    """Of all generators' ticks."""
    generator_worst_ms: float | None = None
    server_send: Percentiles | None = None
    """What the server says of its own sending, from its histogram; null of a server that says nothing."""


class MediaTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Of 20 ms slots at the callers' ears."""

    due: int = 0
    late: int = 0
    lost: int = 0
    underruns: int = 0
    slow: int = 0
    """Waits of more than 20 ms for more of the same speech, before any buffer; ``gaps`` of more than 60 ms."""
    gaps: int = 0
    longest_gap_ms: float = 0.0


class CrossTalk(msgspec.Struct, frozen=True, kw_only=True):
    """Callers say code words of their own, and must hear no others."""

    calls_checked: int = 0
    """That had a code word to say."""
    words: int = 0
    """Different ones that were said: fewer than calls where some were said again by later callers."""
    reused_after_s: float | None = None
    """From the end of a call to the next with the same word, at least; null where each was said by one."""
    turns_checked: int = 0
    own: int = 0
    """Turns whose own word came back."""
    lost: int = 0
    """Turns whose own word did not."""
    foreign: int = 0
    """Words of others that were heard."""
    damaged: int = 0
    """Sounds of a word that were none."""
    calls: tuple[int, ...] = ()
    """The numbers of the first calls that heard a foreign word."""


class Selectivity(msgspec.Struct, frozen=True, kw_only=True):
    """Of backchannels while the agent spoke: at how many it went on."""

    ratio: float | None = None
    went_on: int = 0
    of: int = 0


class TurnTaking(msgspec.Struct, frozen=True, kw_only=True):
    """The timing score of the EVA curve (:mod:`loadtest.turn_taking`), over turns that want an answer."""

    score: float | None = None
    """The mean over turns, 0 to 1."""
    turns: int = 0
    early: int = 0
    """Answers after less than 200 ms."""
    on_time: int = 0
    late: int = 0
    """From 2750 ms on."""
    silent: int = 0
    """No answer after the caller's end."""
    cut_in: int = 0
    """Turns in which the agent began to speak while the caller spoke."""


class Mos(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated by the E-model (ITU-T G.107) from codec, loss and delay of each call; nobody was asked. Low is bad:
    ``p5`` and ``min`` are the worst calls'."""

    count: int = 0
    p50: float | None = None
    p10: float | None = None
    p5: float | None = None
    min: float | None = None
    estimated: bool = True


class TimelinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """``timeline_step_s`` of the run from ``at_s`` on. Latencies are those of the turns that began in it."""

    at_s: float
    up: int = 0
    """The most calls that were up."""
    offered: int = 0
    refused: int = 0
    ended: int = 0
    bad: int = 0
    """Calls that ended in it and were not good."""
    turns: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    max_ms: float | None = None
    late: int = 0
    """Late frames of the turns that began in it."""
    buckets: tuple[int, ...] = ()
    """Turns by voice-to-voice latency, in the bounds of ``timeline_bounds_ms`` and one beyond: the heat map."""


class TurnPoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One dot of the scatter: an array of its fields in this order."""

    at_s: float
    voice_to_voice_ms: float
    call: int
    up: int
    """Calls that were up then."""


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One turn by the server's own record, ms after the caller's last voiced sample as the server heard it."""

    decision_ms: float | None = None
    final_ms: float | None = None
    first_token_ms: float | None = None
    first_clause_ms: float | None = None
    first_audio_ms: float | None = None
    first_sent_ms: float | None = None
    cut_to_silence_ms: float | None = None


class CallDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One call in full: of the worst, or of a sample."""

    outcome: CallOutcome
    badness: float
    """What the worst were chosen by (:func:`loadtest.measured_call.badness`)."""
    worst: bool = False
    stages: tuple[StageTimes, ...] = ()
    """Of its answers in order, where the server keeps records and lets them be read."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a climb for capacity."""

    calls: int
    """Meant to be up at once."""
    held: bool
    void: bool = False
    tries: int = 1
    goodput: float | None = None
    late_frames_ratio: float | None = None
    offered: int = 0
    good: int = 0
    voice_to_voice: Percentiles = Percentiles()
    stop: Percentiles = Percentiles()
    server_cpu_cores: float | None = None
    server_rss_bytes: float | None = None
    generator_p99_ms: float | None = None
    stages_ms: dict[str, Percentiles] = {}
    faults: dict[str, int] = {}


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """``held``: the largest level that was held (0: none); ``broke``: the smallest that was not (null: none was
    reached)."""

    held: int
    broke: int | None = None
    levels: tuple[Level, ...] = ()
    """In the order they were tried."""
    stopped_by: str = ""
    """Why the climb ended, for a person."""


class BaselineLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    before: float | None
    now: float | None
    allowed: float | None
    """The worst that ``now`` may be; null where nothing can be compared."""
    regressed: bool


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """This run beside an earlier one's document."""

    file: str
    at: str = ""
    """When the earlier run began."""
    comparable: bool
    differences: tuple[str, ...] = ()
    """What makes the two runs hard or impossible to compare, for a person."""
    regressed: bool = False
    lines: tuple[BaselineLine, ...] = ()


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why it is no better, for a person; empty of a good run."""
    void: bool = False
    void_reasons: tuple[str, ...] = ()
    fake_engines: bool | None = None
    """The server said that its engines are scripted: the times are those of transport and gateway alone. Null: it did
    not say."""
    notes: tuple[str, ...] = ()
    """What a reader must know and that is no fault: voices that were not there, a scrape that failed."""

    scenario: str
    about: str = ""
    seed: int
    url: str = ""
    transports: tuple[str, ...] = ()
    options: dict[str, str | int | float | bool | None] = {}
    expect: dict[str, float | bool] = {}
    """What the scenario holds the server to."""
    started_at: str
    """ISO 8601, UTC."""
    length_s: float
    interrupted: bool = False
    broken_off: str | None = None
    """Why the run ended by itself before its time: no call came about. Not good, then."""
    machine: Machine

    goodput: float | None = None
    """Good calls over offered ones, without those that the load test cut short itself."""
    faultless: float | None = None
    """Calls without a fault over the same: more than goodput where the scenario lets calls be refused."""
    late_frames_ratio: float | None = None
    calls: CallCounts = CallCounts()
    latency_ms: Latencies = Latencies()
    stages_ms: dict[str, Percentiles] = {}
    """The server's own histograms over this run: decision, final, first_token, ..., interpolated within buckets."""
    lateness: Lateness = Lateness()
    media: MediaTotals = MediaTotals()
    false_barge_in_rate: float | None = None
    """Replies that the agent broke off though nobody interrupted it, over all replies."""
    false_barge_ins: int = 0
    replies: int = 0
    selectivity: Selectivity = Selectivity()
    turn_taking: TurnTaking = TurnTaking()
    mos: Mos = Mos()
    cross_talk: CrossTalk = CrossTalk()
    faults: dict[str, int] = {}
    """Calls by fault; a call may have several."""
    end_causes: dict[str, int] = {}
    problems: dict[str, int] = {}
    """What callers said went wrong, the most frequent first, bounded."""

    generators: tuple[GeneratorReport, ...] = ()
    generator_readings: tuple[GeneratorReading, ...] = ()
    server: ServerReport = ServerReport()
    timeline_step_s: float = 1.0
    timeline_bounds_ms: tuple[float, ...] = ()
    timeline: tuple[TimelinePoint, ...] = ()
    turns: tuple[TurnPoint, ...] = ()
    """All, or an even sample."""
    calls_detail: tuple[CallDetail, ...] = ()
    """The worst first, then a sample of the others."""
    knee: Knee | None = None
    slopes: dict[str, Slope] = {}
    base: Base | None = None
    baseline: Baseline | None = None


class ReportError(Exception):
    """A file is no report of a run, or of a version that is not known; the message says which."""


def to_json(report: RunReport) -> bytes:
    """The document, indented, with a closing newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def from_json(document: bytes) -> RunReport:
    """Raises :class:`ReportError` for what is no such document. Fields that are not known are left out."""
    try:
        report = msgspec.json.decode(document, type=RunReport)
    except msgspec.MsgspecError as error:
        raise ReportError(f"not the report of a load test: {error}") from error
    if report.version != VERSION:
        raise ReportError(f"a report of version {report.version}; this release reads version {VERSION}")
    return report
