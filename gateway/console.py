"""The operator's console: its page, its stream of server-sent events, and what an operator may do.

Who comes in is decided before (:mod:`gateway.security.guard`): with ``console_key`` or ``key``; without any key, on
loopback, whoever is on this machine. Pages of other origins are refused even where they may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.console_feed import Feed, changes_view, encoded
from gateway.records.call_record import MAX_ENTRIES, CallRecord
from gateway.security.guard import error_body, own_origin
from gateway.security.origins import parse_origin
from gateway.state import Gateway
from gateway.web_pages import answer_file

MAX_CONSOLES = 8
EVERY_S = 0.25
BEAT_S = 10.0
"""After so long without an event a comment is sent, so that a proxy keeps the connection."""
SLOW_S = 5.0
"""A reader that does not take a message for so long is dropped; it may come again."""

MAX_ROWS = 100
MAX_QUERY_CHARACTERS = 200

CUT = "offhook.cut"
"""Where in the ASGI scope our server leaves what closes the connection at once."""

HANG_UP_CAUSE = "operator_hung_up"

_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_log = structlog.get_logger(__name__)


def routes() -> list[Route]:
    return [
        Route("/console", _page),
        Route("/console/events", _events),
        Route("/console/calls", _search),
        Route("/console/calls/{id}", _record),
        Route("/console/calls/{id}/hangup", _hang_up, methods=["POST"]),
        Route("/console/drain", _drain, methods=["POST"]),
    ]


async def _page(request: Request) -> Response:
    return answer_file("console/index.html", request.headers)


# --- the stream -------------------------------------------------------------------------------------------------


async def _events(request: Request) -> Response:
    if (refused := _of_another_origin(request)) is not None:
        return refused
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=_NO_STORE)
    return EventStream(_gateway(request))


class EventStream(Response):
    """A snapshot, then changes, until the reader goes, is too slow, or the server has drained. Nothing is queued: what
    is told next is looked up once the last message has been taken."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(media_type="text/event-stream", headers={**_NO_STORE, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        consoles = self._gateway.consoles
        if consoles.open >= MAX_CONSOLES:
            busy = _error(503, "too_many_consoles", "Too many consoles are open.", {"Retry-After": "10"})
            return await busy(scope, receive, send)
        consoles.open += 1
        gone = asyncio.create_task(_gone(receive), name="console reader")
        try:
            await self._stream(scope, send, gone)
        finally:
            consoles.open -= 1
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _stream(self, scope: Scope, send: Send, gone: asyncio.Task[None]) -> None:
        clock = asyncio.get_running_loop().time
        feed = Feed(self._gateway)
        body = encoded("snapshot", feed.snapshot())
        try:
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": body, "more_body": True})
            sent_at = clock()
            while not gone.done():
                await asyncio.wait({gone}, timeout=EVERY_S)
                changes = feed.changes()
                body = encoded("change", changes) if changes is not None else b""
                if not body and clock() - sent_at >= BEAT_S:
                    body = b": beat\n\n"
                over = self._over()
                if over:
                    body += encoded("end", {"reason": "drained"})
                if body:
                    async with asyncio.timeout(SLOW_S):
                        await send({"type": "http.response.body", "body": body, "more_body": not over})
                    sent_at = clock()
                if over:
                    return
        except TimeoutError:
            _log.warning("a console did not read, and is dropped")
            self._gateway.metrics.count("console_dropped")
            await _cut(scope, gone)

    def _over(self) -> bool:
        switchboard = self._gateway.switchboard
        return switchboard.draining and not switchboard.live


async def _gone(receive: Receive) -> None:
    """Returns when the reader is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cut(scope: Scope, gone: asyncio.Task[None]) -> None:
    """What waits to be written to it would keep its socket open for as long as it likes."""
    cut: Callable[[], None] | None = scope.get(CUT)
    if cut is not None:
        cut()
        await asyncio.wait({gone}, timeout=1.0)


# --- calls that were --------------------------------------------------------------------------------------------


async def _search(request: Request) -> Response:
    """Ended calls, newest first: ``q`` is looked for in what is known of them and in what was said; ``after`` is the
    last id of the page before."""
    if (refused := _of_another_origin(request)) is not None:
        return refused
    query = request.query_params.get("q", "")[:MAX_QUERY_CHARACTERS].casefold().split()
    after = request.query_params.get("after")
    records = iter(list(_gateway(request).recent))
    if after is not None:
        while (record := next(records, None)) is not None and record.id != after:
            pass
    found = await asyncio.to_thread(_found, records, query)
    rows = [record.summary() for record in found[:MAX_ROWS]]
    return JSONResponse({"data": rows, "has_more": len(found) > MAX_ROWS}, headers=_NO_STORE)


def _found(records: Iterator[CallRecord], words: list[str]) -> list[CallRecord]:
    """The first that match, and one more than are told."""
    return list(itertools.islice((record for record in records if _matches(record, words)), MAX_ROWS + 1))


def _matches(record: CallRecord, words: list[str]) -> bool:
    """Whether every word is somewhere in it."""
    known = " ".join(filter(None, (record.id, record.transport, record.agent, record.cause))).casefold()
    left = [word for word in words if word not in known]
    for entry in record.transcript if left else ():
        said = f"{entry.text} {entry.unheard}".casefold()
        left = [word for word in left if word not in said]
    return not left


async def _record(request: Request) -> Response:
    """All that is known of a call, live or ended."""
    gateway = _gateway(request)
    call_id = request.path_params["id"]
    live = gateway.switchboard.find(call_id)
    record = live.record if live is not None else gateway.recent.find(call_id)
    if (refused := _of_another_origin(request)) is not None:
        return refused
    if record is None:
        return _no_such_call()
    dropped = {"transcript_dropped": record.entries_dropped, "turns_dropped": record.turns_dropped}
    changes = record.since(0, MAX_ENTRIES)
    view = await asyncio.to_thread(lambda: msgspec.json.encode(changes_view(record, changes) | dropped))
    return Response(view, media_type="application/json", headers=_NO_STORE)


# --- what an operator may do ------------------------------------------------------------------------------------


async def _hang_up(request: Request) -> Response:
    if (refused := _of_another_origin(request)) is not None:
        return refused
    call_id = request.path_params["id"]
    call = _gateway(request).switchboard.find(call_id)
    if call is None:
        return _no_such_call()
    _log.info("an operator hangs up a call", call=call_id)
    call.hang_up(HANG_UP_CAUSE)
    return JSONResponse({"id": call_id, "cause": HANG_UP_CAUSE}, headers=_NO_STORE)


async def _drain(request: Request) -> Response:
    """What the first SIGTERM does: new calls are refused, those that are up may end, then hear the farewell, then are
    hung up; then the server stops. Under another server than ours the process stays up, and takes no calls."""
    if (refused := _of_another_origin(request)) is not None:
        return refused
    gateway = _gateway(request)
    stop: Callable[[], None] | None = getattr(request.app.state, "drain_and_stop", None)
    if not gateway.switchboard.draining:
        _log.info("an operator drains the server", calls=gateway.switchboard.live)
        if stop is not None:
            stop()
        else:
            gateway.desk.start("drain", gateway.switchboard.drain(gateway.settings.drain_s))
    body = {"draining": True, "calls": gateway.switchboard.live, "stops": stop is not None}
    return JSONResponse(body, 202, headers=_NO_STORE)


# --- shared -----------------------------------------------------------------------------------------------------


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _of_another_origin(request: Request) -> Response | None:
    """A page that may call (``allowed_origins``) is no console."""
    origin = request.headers.get("origin")
    if origin is None or parse_origin(origin) == own_origin(request):
        return None
    return _error(403, "origin_not_allowed", "Only the gateway's own console may ask this.")


def _no_such_call() -> Response:
    return _error(404, "call_not_found", "There is no such call, or it ended too long ago.")


def _error(status: int, code: str, message: str, headers: dict[str, Any] | None = None) -> Response:
    return JSONResponse(error_body(code, message), status, headers={**_NO_STORE, **(headers or {})})
