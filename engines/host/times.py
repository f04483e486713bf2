"""How long an engine host may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The bounds of a host's life."""

    greet_s: float = 60.0
    """From its start to its hello: an interpreter on a busy, cold disk."""
    load_s: float = 900.0
    """One engine's loading and warming."""
    ping_every_s: float = 1.0
    suspect_pings: int = 3
    """Pings without an answer after which what is under way there fails, and nothing more is asked until it answers: a
    caller hears the fallback or an apology, and a host that was only starved keeps its models. The longest answer
    measured with six processes busy on two cores was 0.6 s."""
    silent_pings: int = 10
    """Pings without an answer after which a host is hung. Counted, not timed: a gateway that stood still itself (a
    laptop that slept) finds the answers waiting."""
    silent_pings_loading: int = 120
    """The same while it loads a model: that may keep its interpreter busy for long."""
    troubled_pings: int = 20
    """Answers in a row which say that the MLX thread is not well. One long quantum (a compile) is no reason."""
    stable_s: float = 60.0
    """Up for this long, it starts from the shortest delay again."""
    close_s: float = 20.0
    """An orderly end."""
    outbox_bytes: int = 16 * 2**20
    """Not taken by the host yet; beyond it, it is hung."""
