"""Which carriers there are: a vendor's module is named here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.settings import Settings
from gateway.transports.asterisk.chan_websocket import Asterisk
from gateway.transports.carriers.dialect import Carrier
from gateway.transports.carriers.freeswitch import Freeswitch
from gateway.transports.carriers.jambonz import Jambonz
from gateway.transports.carriers.plivo import Plivo
from gateway.transports.carriers.telnyx import Telnyx
from gateway.transports.carriers.twilio import Twilio
from gateway.transports.carriers.vonage import Vonage


def carriers_of(settings: Settings, now_s: Callable[[], float]) -> Iterator[Carrier]:
    """Those that are enabled. ``now_s`` is Unix time."""
    if settings.twilio.enabled:
        yield Twilio(settings.twilio)
    if settings.telnyx.enabled:
        yield Telnyx(settings.telnyx, now_s)
    if settings.plivo.enabled:
        yield Plivo(settings.plivo, now_s)
    if settings.vonage.enabled:
        yield Vonage(settings.vonage, now_s)
    if settings.jambonz.enabled:
        yield Jambonz(settings.jambonz, now_s)
    if settings.freeswitch.enabled:
        yield Freeswitch(settings.freeswitch)
    if settings.asterisk.enabled:
        yield Asterisk(settings.asterisk, now_s)
