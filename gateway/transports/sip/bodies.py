"""What a message carries: the description of a call's media, and how one is refused."""

from __future__ import annotations

import re

from gateway.transports.sip.message import Request, Response
from gateway.transports.sip.sdp import BadSdp

SDP = "application/sdp"


def sdp_of(message: Request | Response) -> str | None:
    """The description in a message, alone or as a part of several; None: it has none. Raises :class:`BadSdp`."""
    if not message.body:
        return None
    if message.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadSdp(415, "content_encoding", "encoded bodies are not taken")
    body = message.body
    if message.content_type == "multipart/mixed":
        body = _sdp_part(message.headers.get("content-type"), body)
    elif message.content_type != SDP:
        raise BadSdp(415, "content_type", "only application/sdp is taken")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadSdp(400, "encoding", "the description is not UTF-8") from None


def why(error: BadSdp) -> list[tuple[str, str]]:
    """The headers of a refusal of a description."""
    if error.status == 415:
        return [("accept", SDP), ("accept-encoding", "identity")]
    return [("warning", f'399 offhook "{_plain(str(error))}"')]


def _plain(text: str) -> str:
    return re.sub(r"[^ !#-\[\]-~]", " ", text)[:120]


def _sdp_part(content_type: str, body: bytes) -> bytes:
    """The first ``application/sdp`` of a multipart body (RFC 5621; carriers add ISUP). Raises :class:`BadSdp`."""
    found = re.search(r'(?i);\s*boundary\s*=\s*("?)([A-Za-z0-9\'()+_,\-./:=? ]{1,70})\1', content_type)
    if found is None:
        raise BadSdp(400, "multipart", "a multipart body without a boundary")
    for part in body.split(b"--" + found[2].strip().encode())[1:]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if blank and re.search(rb"(?i)^content-type[ \t]*:[ \t]*application/sdp\b", head.strip(b"\r\n"), re.MULTILINE):
            return content
    raise BadSdp(415, "content_type", "no part of the body is application/sdp")
