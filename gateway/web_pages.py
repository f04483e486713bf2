"""The pages people open: the files of ``web/``, and whom the call page can reach.

The files are few and small: all are read once, so that a request is a look-up in a dict. Nothing on the disk can be
reached by a path, and no request waits for the disk. Beside this package lies ``web/``, in a checkout (which is how
the gateway is installed) as well as in ``site-packages``.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.state import Gateway

WEB = Path(__file__).resolve().parent.parent / "web"

PREFIX = "/web/"
"""Where the files are served, without a key: they hold no secret, and a person has none before the page asks."""

CALL_PAGE = "call/index.html"

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files of other kinds are not served."""

SECURITY_HEADERS = {
    # Only our own files run, nothing inline; icons and audio are our own too. Nobody may frame the page: a click on
    # its one button opens the microphone.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), display-capture=(), geolocation=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

WHAT_THIS_IS = (
    "Offhook, a real-time voice gateway.\n"
    "Call it over the OpenAI Realtime protocol: a WebSocket at /v1/realtime, WebRTC at /v1/realtime/calls.\n"
    "See also /call, /console, /readyz, /metrics and /v1/calls.\n"
)


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file as it is sent. ``packed`` is its gzip, None where that is no shorter."""

    body: bytes
    packed: bytes | None
    content_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> WebFile:
        body = path.read_bytes()
        packed = gzip.compress(body, mtime=0)
        # Weak (RFC 9110 section 8.8.1): the packed and the plain body share it.
        etag = f'W/"{hashlib.sha256(body).hexdigest()[:24]}"'
        return cls(body, packed if len(packed) < len(body) else None, CONTENT_TYPES[path.suffix], etag)

    def answer(self, headers: Mapping[str, str]) -> Response:
        """What a GET with these request headers gets: the file, or 304 if the client has it."""
        kept = {**SECURITY_HEADERS, "Cache-Control": "no-cache", "ETag": self.etag, "Vary": "Accept, Accept-Encoding"}
        if _matches(headers.get("if-none-match", ""), self.etag):
            return Response(status_code=304, headers=kept)
        body = self.body
        if self.packed is not None and "gzip" in headers.get("accept-encoding", ""):
            body, kept["Content-Encoding"] = self.packed, "gzip"
        return Response(body, headers={**kept, "Content-Type": self.content_type})


def _matches(if_none_match: str, etag: str) -> bool:
    """RFC 9110 section 13.1.2: compared weakly."""
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in known or etag.removeprefix("W/") in known


@functools.cache
def web_files(folder: Path = WEB) -> Mapping[str, WebFile]:
    """Every file served, by its path inside ``web/`` with forward slashes.

    Raises:
        FileNotFoundError: the call page is not there: the gateway was installed without ``web/``.
    """
    files = {
        path.relative_to(folder).as_posix(): WebFile.read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in CONTENT_TYPES and path.is_file()
    }
    if CALL_PAGE not in files:
        raise FileNotFoundError(f"{folder / CALL_PAGE} is missing: install the gateway with its web/ folder")
    return files


def answer_file(path: str, headers: Mapping[str, str]) -> Response:
    """The file of ``web/`` at this path. Raises :class:`HTTPException` (404)."""
    file = web_files().get(path)
    if file is None:
        raise HTTPException(404, "There is no such page.")
    return file.answer(headers)


def is_open(path: str) -> bool:
    """Whether a request for this path needs no key: the pages themselves, and what they are made of."""
    return path in {"/", "/call", "/console"} or path.startswith(PREFIX)


def routes(*, call_page: bool = True) -> list[Route]:
    """``/``, ``/call``, the files, and ``/v1/agents`` (which is guarded like ``/v1/realtime/client_secrets``).
    Without ``call_page`` there is no page to call from, only the files that other pages share."""
    web_files()
    return list(_routes(call_page))


def _routes(call_page: bool) -> Iterator[Route]:
    yield Route("/", _front if call_page else _what_this_is)
    yield Route(PREFIX + "{path:path}", _file)
    if call_page:
        yield Route("/call", _call)
        yield Route("/v1/agents", _agents)


async def _front(request: Request) -> Response:
    """The call page for a browser, a few words for everything else."""
    if "text/html" in request.headers.get("accept", ""):
        return answer_file(CALL_PAGE, request.headers)
    response = await _what_this_is(request)
    response.headers["Vary"] = "Accept"
    return response


async def _what_this_is(request: Request) -> Response:
    return PlainTextResponse(WHAT_THIS_IS)


async def _call(request: Request) -> Response:
    return answer_file(CALL_PAGE, request.headers)


async def _file(request: Request) -> Response:
    return answer_file(request.path_params["path"], request.headers)


async def _agents(request: Request) -> Response:
    """Who can be called: what a person chooses by, and nothing of how an agent is instructed."""
    gateway: Gateway = request.app.state.gateway
    rows = [
        {"name": agent.name, "greeting": agent.settings.greeting, "language": agent.settings.language}
        for agent in gateway.agents
    ]
    notice = {"notice": gateway.notice} if gateway.notice else {}
    return JSONResponse({"object": "list", "data": rows, **notice}, headers={"Cache-Control": "no-store"})
