"""The carriers of a gateway: who they are, which streams they may open, and what was promised to them."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import structlog
from starlette.requests import HTTPConnection

from gateway.settings import Settings
from gateway.transports.carriers.dialect import Asked, Carrier, Reply, RestRequest, Unauthentic
from gateway.transports.carriers.known import carriers_of
from gateway.transports.carriers.rest import RestClient, RestFailed, rest_client
from gateway.transports.carriers.tickets import Tickets
from gateway.transports.carriers.wire import text
from gateway.transports.phone.line import Incoming

_log = structlog.get_logger(__name__)

PREFIX = "/v1/carriers/"
"""What lies under it is judged by the carriers' signatures, not by the bearer key."""

COMPLAIN_S = 10.0
MAX_PORT = 65_535

_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")

MAX_FIELDS = 200
"""Of a form or a query: a vendor sends some dozens."""


class CarrierDesk:
    """At ``app.state.carriers``. ``now_s`` is Unix time; ``new_ticket`` makes a word that nobody can guess."""

    def __init__(
        self,
        settings: Settings,
        *,
        now_s: Callable[[], float] = time.time,
        new_ticket: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._public_url = settings.public_url
        self._carriers = {carrier.name: carrier for carrier in carriers_of(settings, now_s)}
        self._now_s = now_s
        self._complained: dict[str, float] = {}
        self._rest: RestClient | None = None
        self.streams: Tickets[Incoming] = Tickets(now_s, new=new_ticket)
        self.documents: Tickets[Reply] = Tickets(now_s, new=new_ticket)

    def find(self, name: str) -> Carrier | None:
        """None: there is no such carrier, or it is not enabled."""
        return self._carriers.get(name)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """What its REST requests need, while the block runs."""
        if not any(carrier.api_url for carrier in self._carriers.values()):
            yield
            return
        async with rest_client() as self._rest:
            try:
                yield
            finally:
                self._rest = None

    async def send(self, carrier: Carrier, request: RestRequest) -> None:
        """Raises :class:`RestFailed`."""
        if self._rest is None:
            raise RestFailed("no_credentials")
        await self._rest.send(carrier, request)

    async def send_later(self, carrier: Carrier, request: RestRequest) -> None:
        """:meth:`send` for what nobody waits for: a failure is logged."""
        try:
            await self.send(carrier, request)
        except RestFailed as failed:
            _log.warning("a carrier's API did not do it", reason=failed.code, status=failed.status)

    def complain(self, connection: HTTPConnection, carrier: Carrier, code: str) -> None:
        """Log what was refused, with what its signature was held to be of: a proxy that hides the public address is the
        usual reason. Once in a while only: strangers must not fill the log."""
        now = self._now_s()
        if now < self._complained.get(carrier.name, 0.0) + COMPLAIN_S:
            return
        self._complained[carrier.name] = now
        web = connection.scope["type"] == "http"
        try:
            where = f"{self._base(connection, web=web)}{PREFIX}{carrier.name}/{'call' if web else 'stream'}"
        except Unauthentic:
            where = ""
        _log.warning("a carrier's request was refused", carrier=carrier.name, code=code, asked_of=where)

    def stream_url(self, connection: HTTPConnection, carrier: Carrier, incoming: Incoming) -> str:
        """Where a call's audio shall go: good once, for a minute."""
        ticket = self.streams.issue(carrier.name, incoming)
        return f"{self._base(connection, web=False)}{PREFIX}{carrier.name}/stream/{ticket}"

    def publish(self, connection: HTTPConnection, carrier: Carrier) -> Callable[[Reply], str]:
        """What makes the URL of a document for this carrier: good once, for a minute."""
        base = self._base(connection, web=True)

        def put(reply: Reply) -> str:
            return f"{base}{PREFIX}{carrier.name}/document/{self.documents.issue(carrier.name, reply)}"

        return put

    def admit_stream(self, connection: HTTPConnection, carrier: Carrier) -> Incoming | None:
        """What is known of the call that a stream is for: by its ticket, else by what the address asks for
        (``?agent=``, ``from``, ``to``). Raises :class:`Unauthentic`."""
        ticket = connection.path_params.get("ticket")
        question = asked(connection, self._base(connection, web=False))
        if carrier.signs_upgrade or ticket is None:
            carrier.check_upgrade(question)
        if ticket is None:
            query: dict[str, Any] = dict(question.query)
            return Incoming(carrier.name, text(query, "agent"), text(query, "to"), text(query, "from"))
        incoming = self.streams.redeem(carrier.name, ticket)
        if incoming is None:
            raise Unauthentic("ticket_invalid", "The ticket of this stream is unknown, used or expired.")
        return incoming

    def ask(self, connection: HTTPConnection, body: bytes = b"") -> Asked:
        """A webhook as its signature sees it. Raises :class:`Unauthentic`."""
        return asked(connection, self._base(connection, web=True), body)

    def _base(self, connection: HTTPConnection, *, web: bool) -> str:
        """Raises :class:`Unauthentic`: nothing was signed for what is no host."""
        base = self._public_url
        if not base:
            host = connection.headers.get("host", "")
            named = _HOST.fullmatch(host)
            if named is None or int(named[1] or 0) > MAX_PORT:
                raise Unauthentic("host_invalid", "The Host header names no host; or let public_url say it.")
            base = f"{'https' if connection.scope['scheme'] in {'https', 'wss'} else 'http'}://{host}"
        return base if web else "ws" + base.removeprefix("http")


def asked(connection: HTTPConnection, base: str, body: bytes = b"") -> Asked:
    """``base``: scheme, host, port and what a proxy puts before the path."""
    scope = connection.scope
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    path = raw_path.partition(b"?")[0].decode("latin-1")
    kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Asked(
        url=base + path + (f"?{query.decode('latin-1')}" if query else ""),
        headers=_headers(connection),
        query=dict(_fields(query.decode("latin-1"))),
        method=scope.get("method", "GET"),
        body=body,
        form=_fields(body.decode("utf-8", "replace")) if kind == "application/x-www-form-urlencoded" else (),
    )


def _headers(connection: HTTPConnection) -> Mapping[str, str]:
    return {name.lower(): value for name, value in connection.headers.items()}


def _fields(encoded: str) -> tuple[tuple[str, str], ...]:
    """Of more than :data:`MAX_FIELDS` none: what they sign is not what we would read."""
    try:
        return tuple(parse_qsl(encoded, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        return ()
