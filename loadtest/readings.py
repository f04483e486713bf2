"""What machines told of themselves in a run: the generators, the server, and the one the callers ran on.

Parts of the document of :mod:`loadtest.run_report`, with its rules: all fields are always there, null where nothing is
known; ``_s`` is the run's own clock.
"""

from __future__ import annotations

import msgspec


class GeneratorReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process of callers."""

    process: int
    calls: int = 0
    most_up: int = 0
    cpu_cores: float | None = None
    """Mean over the run."""
    cpu_cores_max: float | None = None
    p99_ms: float | None = None
    """Lateness of its ticker's own deadlines."""
    worst_ms: float | None = None
    ticks: int = 0
    skipped: int = 0
    """Ticks that a stall swallowed."""
    problem: str | None = None


class GeneratorReading(msgspec.Struct, frozen=True, kw_only=True):
    """All generators in one second."""

    at_s: float
    up: int = 0
    cpu_cores: float | None = None
    """Of the busiest one."""
    p99_ms: float | None = None
    """Of the latest one."""
    worst_ms: float | None = None


class ServerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the server told of itself at one moment (its ``/metrics``); null for what it does not tell."""

    at_s: float
    cpu_s: float | None = None
    """Since its process began."""
    cpu_cores: float | None = None
    """Since the last reading."""
    rss_bytes: float | None = None
    threads: float | None = None
    fds: float | None = None
    tasks: float | None = None
    loop_lag_ms: float | None = None
    calls_live: float | None = None
    calls_refused: float | None = None
    """Since its process began."""
    send_late_frames: float | None = None
    """Since its process began."""
    utilisation: float | None = None
    """Of its busiest executor lane, 0 to 1."""
    queue_age_ms: float | None = None
    """How long the oldest job of any lane waits."""
    hosts_cpu_s: float | None = None
    """Of its engines' own processes, since they began."""
    hosts_cpu_cores: float | None = None
    """Since the last reading."""
    hosts_rss_bytes: float | None = None

    @property
    def all_cpu_cores(self) -> float | None:
        """Of its process, and those of its engines where it tells of them."""
        return None if self.cpu_cores is None else self.cpu_cores + (self.hosts_cpu_cores or 0.0)

    @property
    def all_rss_bytes(self) -> float | None:
        """The same of memory."""
        return None if self.rss_bytes is None else self.rss_bytes + (self.hosts_rss_bytes or 0.0)


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """``info`` are the labels of its ``offhook_info``: version, preset, engines."""

    info: dict[str, str] = {}
    metrics_url: str | None = None
    readings: tuple[ServerReading, ...] = ()
    cpu_cores_per_call: float | None = None
    """Mean of CPU over mean of calls up, while at least one was; with what its engines' own processes took, where it
    tells of them."""
    rss_bytes_per_call: float | None = None
    """Growth from before the run to its largest, over the most calls up; those processes included as well."""
    hosts_cpu_cores_per_call: float | None = None
    """What of it is theirs; null where it tells of none."""
    hosts_rss_bytes_per_call: float | None = None
    scrapes_failed: int = 0


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line by least squares through readings after the warm-up."""

    unit: str
    per_hour: float
    samples: int
    from_s: float
    to_s: float
    first: float
    """The line at ``from_s``, and at ``to_s``."""
    last: float
    uncertainty_per_hour: float | None = None
    """Half of the 95 % interval of ``per_hour``, as far as readings are independent."""
    allowed_per_hour: float | None = None
    flat: bool | None = None
    """Within what is allowed; null: the run was too short to say."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The server before the run, and once it had settled after it."""

    before: ServerReading
    after: ServerReading
    settled_s: float
    grown: dict[str, float] = {}
    """``rss_bytes``, ``threads``, ``fds``, ``tasks``, ``calls_live``: after less before."""
    back: bool | None = None
    """Threads, fds, tasks and calls are back where they were; null of a server that does not tell."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the callers ran on. Where the server is elsewhere, these numbers are not the server's."""

    cores: int
    system: str = ""
    processor: str = ""
    python: str = ""
    load_before: float | None = None
    """Over one minute (getloadavg)."""
    load_after: float | None = None
