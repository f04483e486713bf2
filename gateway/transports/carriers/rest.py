"""Requests to vendors' REST APIs: bounded in time and number, credentials never in a log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import structlog

from gateway.transports.carriers.dialect import Carrier, RestRequest

_log = structlog.get_logger(__name__)

ATTEMPTS = 3
FIRST_PAUSE_S = 0.2
"""Before the second attempt; twice that before the third."""
WHOLE_S = 4.5
"""All attempts: a call's end waits for its hang-up."""
_AGAIN = frozenset({429, 500, 502, 503, 504})


class RestFailed(Exception):  # noqa: N818 (the call goes on)
    """``code``: ``unreachable``, ``refused`` (with the ``status``), ``no_credentials``."""

    def __init__(self, code: str, status: int | None = None) -> None:
        super().__init__(f"the carrier's API: {code}" + ("" if status is None else f" ({status})"))
        self.code = code
        self.status = status


class RestClient:
    """One for all carriers: :func:`rest_client` makes and closes it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(self, carrier: Carrier, request: RestRequest) -> None:
        """Raises :class:`RestFailed` when it is not known to be done within :data:`WHOLE_S`."""
        if not carrier.api_url:
            raise RestFailed("no_credentials")
        try:
            async with asyncio.timeout(WHOLE_S):
                await self._attempts(carrier, request)
        except TimeoutError:
            raise RestFailed("unreachable") from None

    async def _attempts(self, carrier: Carrier, request: RestRequest) -> None:
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                status = await self._once(carrier, request)
            except httpx.ConnectError:  # it did not arrive
                if last:
                    raise RestFailed("unreachable") from None
                continue
            except httpx.HTTPError:
                if last or not request.repeatable:
                    raise RestFailed("unreachable") from None
                continue
            if 200 <= status < 300 or status in request.done:
                return
            if last or status not in _AGAIN or not (request.repeatable or status == 429):
                raise RestFailed("refused", status)

    async def _once(self, carrier: Carrier, request: RestRequest) -> int:
        """The status, which is all that an answer is read for: what follows it may be of any length, and never end."""
        body = request.body
        async with self._client.stream(
            request.method,
            carrier.api_url + request.path,
            headers=dict(carrier.api_headers(request)),
            data=dict(body) if body is not None and request.form else None,
            json=dict(body) if body is not None and not request.form else None,
        ) as response:
            status = response.status_code
        _log.debug("asked a carrier's API", carrier=carrier.name, method=request.method, status=status)
        return status


@contextlib.asynccontextmanager
async def rest_client() -> AsyncIterator[RestClient]:
    """The trusted certificates are read in a thread: it takes the loop's time for tens of milliseconds."""
    verify = await asyncio.to_thread(httpx.create_ssl_context)
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=8)
    timeout = httpx.Timeout(4.0, connect=2.0)
    async with httpx.AsyncClient(verify=verify, limits=limits, timeout=timeout, follow_redirects=False) as client:
        yield RestClient(client)
