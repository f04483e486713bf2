"""Request bodies, bounded while they are read, and the parts of a form (RFC 7578)."""

from __future__ import annotations

import asyncio
import re
from email.message import Message

from starlette.requests import Request

BODY_S = 10.0
"""For the whole body: an offer is a few kB."""
MAX_PARTS = 8
MAX_PART_HEAD_BYTES = 2_048
MAX_CONTENT_TYPE_CHARS = 512
"""Python's parser takes a tenth of a second for the 16 kB that a header may have."""

_NAME = re.compile(r'(?:^|;)\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))', re.IGNORECASE)


class BodyTooLarge(Exception):  # noqa: N818 (an answer, not a defect)
    """413; nothing beyond the bound was kept."""


class BodyTooSlow(Exception):  # noqa: N818 (an answer, not a defect)
    """408."""


class BadForm(Exception):  # noqa: N818 (an answer, not a defect)
    """No form that can be understood."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """All of it. Raises :class:`BodyTooLarge`, :class:`BodyTooSlow`, and
    :class:`starlette.requests.ClientDisconnect`."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise BodyTooLarge
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise BodyTooLarge
    except TimeoutError:
        raise BodyTooSlow from None
    return bytes(body)


def media_type(request: Request) -> tuple[str, str | None]:
    """Lower case, with the boundary if it has one. Of a header that is too long nothing is read."""
    given = request.headers.get("content-type", "")
    if not given or len(given) > MAX_CONTENT_TYPE_CHARS:
        return "", None
    header = Message()
    header["content-type"] = given
    boundary = header.get_param("boundary")
    return header.get_content_type(), boundary if isinstance(boundary, str) else None


def form_parts(body: bytes, boundary: str) -> dict[str, bytes]:
    """The parts by name; of two with one name the last. Raises :class:`BadForm`."""
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(b"\r\n" + delimiter)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise BadForm("the form does not end as its boundary says")
    if len(pieces) - 2 > MAX_PARTS:
        raise BadForm(f"a form has at most {MAX_PARTS} parts")
    parts = {}
    for piece in pieces[1:-1]:
        head, separator, content = piece.partition(b"\r\n\r\n")
        if not separator or len(head) > MAX_PART_HEAD_BYTES:
            raise BadForm("a part of the form has no header, or one without end")
        parts[_part_name(head)] = content
    return parts


def _part_name(head: bytes) -> str:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            found = _NAME.search(value)
            if found is not None and value.strip().lower().startswith("form-data"):
                return found[1] if found[1] is not None else found[2]
    raise BadForm("a part of the form has no name")
