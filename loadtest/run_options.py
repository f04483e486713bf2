"""What somebody asked a load test for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loadtest.address import shown_url
from loadtest.call import PhoneOptions

METRICS_OFF: Literal["off"] = "off"

_GIVEN = "…"

VOID_P99_MS = 5.0
"""A generator that is later than this at its own deadlines measures itself."""


class RunUsageError(Exception):
    """The run can't be done as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """None: as the scenario has it, or as is best. ``pin``: the callers' cores, with commas between. ``metrics`` is a
    URL, or :data:`METRICS_OFF`; None: where a server that is called so would have it. ``codes``: None: where the server
    says that its engines are fakes. ``void_p99_ms``: a run whose generators are later is void. ``phone``: without a
    caller each call has a number of its own."""

    scenario: str
    urls: tuple[str, ...]
    agent: str | None = None
    key: str | None = field(default=None, repr=False)
    calls: int | None = None
    ramp_s: float | None = None
    for_s: float | None = None
    seed: int = 1
    processes: int | None = None
    pin: str | None = None
    metrics: str | None = None
    codes: bool | None = None
    keep: int = 6
    void_p99_ms: float = VOID_P99_MS
    phone: PhoneOptions = field(default_factory=PhoneOptions)

    @property
    def cores(self) -> tuple[int, ...]:
        """Raises :class:`RunUsageError`."""
        if self.pin is None:
            return ()
        try:
            return tuple(int(core) for core in self.pin.split(","))
        except ValueError:
            raise RunUsageError(f"cores are numbers with commas between, not {self.pin}") from None

    def named(self) -> Mapping[str, str | int | float | bool | None]:
        """For the report: without the key, and of other secrets only that they were given."""
        phone = self.phone
        return {
            "calls": self.calls,
            "ramp_s": self.ramp_s,
            "for_s": self.for_s,
            "agent": self.agent,
            "processes": self.processes,
            "pin": self.pin,
            "metrics": self.metrics,
            "codes": self.codes,
            "caller": phone.caller,
            "user": phone.user,
            "password": _GIVEN if phone.password is not None else None,
            "codec": phone.codec,
            "auth_token": _GIVEN if phone.auth_token is not None else None,
            "signed_url": shown_url(phone.signed_url) if phone.signed_url is not None else None,
            "parameters": ", ".join(f"{name}={_GIVEN}" for name in phone.parameters) or None,
        }


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Where the report goes, and what it is compared with. ``json``: :data:`STDOUT` is standard output."""

    json: Path | None = None
    html: Path | None = None
    baseline: Path | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class ClimbOptions:
    """Of ``--find-capacity``: levels, in calls at once. ``start``: None: one."""

    start: int | None = None
    most: int = 10_000


STDOUT = Path("-")
