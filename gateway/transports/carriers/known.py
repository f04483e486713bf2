"""Which carriers there are: a vendor's module is named here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.settings import Settings
from gateway.transports.carriers.dialect import Carrier
from gateway.transports.carriers.twilio import Twilio


def carriers_of(settings: Settings, now_s: Callable[[], float]) -> Iterator[Carrier]:
    """Those that are enabled. ``now_s`` is Unix time."""
    if settings.twilio.enabled:
        yield Twilio(settings.twilio)
