"""What a SIP server's final status means to a person who called it."""

from __future__ import annotations

import re

from loadtest.call import CallOver, EndCause
from loadtest.sip.message import SipMessage, SipUri


def refused(message: SipMessage, target: SipUri, *, known: bool) -> CallOver:
    """The end of a call that was answered with a final status that is no success."""
    said = f"{message.status} {message.reason}".strip() + f" from {target}"
    if why := _warning(message):
        said += f" ({why})"
    retry = message.first("retry-after")
    match message.status:
        case 401 | 407:
            hint = "the credentials are not accepted" if known else "a password is needed: give --user and --password"
            return CallOver(EndCause.UNAUTHORIZED, f"{said}: {hint}")
        case 403:
            return CallOver(EndCause.FORBIDDEN, said)
        case 404 | 604:
            return CallOver(EndCause.NOT_FOUND, said)
        case 480 | 486 | 503 | 600 | 603:
            return CallOver(EndCause.BUSY, f"{said}{f' (again in {retry} s)' if retry else ''}")
        case 415 | 488 | 606:
            return CallOver(EndCause.NO_MEDIA, said)
        case _:
            return CallOver(EndCause.REFUSED, said)


def _warning(message: SipMessage) -> str:
    """The words of ``Warning`` (RFC 3261, 20.43), for a person; empty without."""
    match = re.search(r'"((?:[^"\\]|\\.){1,200})"', message.first("warning"))
    return match.group(1) if match else ""
