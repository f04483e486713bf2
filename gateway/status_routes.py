"""What those who watch a gateway ask it over HTTP: whether it lives and takes calls, its metrics, and its calls."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.readiness import unready
from gateway.security.guard import error_body
from gateway.state import Gateway
from gateway.telemetry.metrics import CONTENT_TYPE

MAX_PAGE = 200
DEFAULT_PAGE = 50


def is_open(path: str) -> bool:
    """Whether a request for this path needs no key."""
    return path in {"/livez", "/readyz"}


def routes() -> list[Route]:
    return [
        Route("/livez", _livez),
        Route("/readyz", _readyz),
        Route("/metrics", _metrics),
        Route("/v1/calls", _list_calls),
        Route("/v1/calls/{id}", _one_call),
    ]


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _livez(request: Request) -> Response:
    return JSONResponse({"status": "live"})


async def _readyz(request: Request) -> Response:
    gateway: Gateway | None = request.app.state.gateway
    if gateway is None:
        return JSONResponse({"status": "warming"}, 503)
    why_not = unready(gateway.switchboard, gateway.engines.health())
    notice = {"notice": gateway.notice} if gateway.notice else {}
    return JSONResponse({**(why_not or {"status": "ready"}), **notice}, 503 if why_not is not None else 200)


async def _metrics(request: Request) -> Response:
    """In slices, so that calls have their turns between them."""
    families: list[bytes] = []
    for family in _gateway(request).metrics.exposition():
        families.append(family)
        await asyncio.sleep(0)
    return Response(b"".join(families), media_type=CONTENT_TYPE)


async def _list_calls(request: Request) -> Response:
    """Live calls, then ended ones, each newest first. ``limit`` 1..200; ``after`` is the last id of the page before."""
    gateway = _gateway(request)
    text = request.query_params.get("limit", str(DEFAULT_PAGE))
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MAX_PAGE):
        return _error(400, "invalid_limit", f"limit is a whole number from 1 to {MAX_PAGE}.")
    limit = int(text)
    records = itertools.chain(gateway.switchboard.calls(), gateway.recent)
    after = request.query_params.get("after")
    if after is not None and not any(record.id == after for record in records):
        return _error(400, "unknown_cursor", "The call named by after is not kept any more.")
    rows = [record.summary() for record in itertools.islice(records, limit + 1)]
    page = rows[:limit]
    return JSONResponse(
        {
            "object": "list",
            "data": page,
            "has_more": len(rows) > limit,
            "last_id": page[-1]["id"] if page else None,
        }
    )


async def _one_call(request: Request) -> Response:
    """All that is known of it. Hundreds of turns take more than 5 ms."""
    gateway = _gateway(request)
    call_id = request.path_params["id"]
    live = gateway.switchboard.find(call_id)
    record = live.record if live is not None else gateway.recent.find(call_id)
    if record is None:
        return _error(404, "call_not_found", "There is no such call, or it ended too long ago.")
    body = await asyncio.to_thread(lambda: msgspec.json.encode(record.view()))
    return Response(body, media_type="application/json")


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse(error_body(code, message), status)
