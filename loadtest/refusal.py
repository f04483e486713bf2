"""What a server's HTTP status means to a person who called it."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from loadtest.address import shown_url
from loadtest.call import CallOver, CallPlan, EndCause

_SHOWN_CHARACTERS = 300


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    message: str | None = None


class _Body(msgspec.Struct, frozen=True):
    error: _Error


def refusal(status: int, body: bytes, url: str, plan: CallPlan) -> CallOver:
    """The end of a call that was answered with ``status`` instead of being taken."""
    said = _words(body)
    shown = shown_url(url)
    said = f" ({said})" if said else ""
    match status:
        case 401:
            hint = "the key is not accepted" if plan.key else "a key is needed: give --key"
            return CallOver(EndCause.UNAUTHORIZED, f"401 from {shown}: {hint}{said}")
        case 403:
            # Several servers answer so to an upgrade of a path that they do not have.
            guess = "not allowed" if urlsplit(url).path.strip("/") else "not allowed, or no path to call"
            return CallOver(EndCause.FORBIDDEN, f"403 from {shown}: {guess}{said}")
        case 404:
            guess = f"no agent named {plan.agent}" if plan.agent else "no such path or agent"
            return CallOver(EndCause.NOT_FOUND, f"404 from {shown}: {_coded(body) or guess + said}")
        case 429 | 503:
            return CallOver(EndCause.BUSY, f"{status} from {shown}: busy{said}")
        case _:
            return CallOver(EndCause.REFUSED, f"{status} from {shown}{said}")


def _words(body: bytes) -> str:
    """The message of an OpenAI-style error, or the body as it is."""
    return _coded(body) or " ".join(body.decode("utf-8", "replace").split())[:_SHOWN_CHARACTERS]


def _coded(body: bytes) -> str:
    """The code and the message of an OpenAI-style error; empty if it is none."""
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except msgspec.MsgspecError:
        return ""
    return ": ".join(part for part in (error.code, error.message) if part)[:_SHOWN_CHARACTERS]
