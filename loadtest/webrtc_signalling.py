"""The HTTP side of a WebRTC call: an offer goes out, an answer comes back, and a hang-up ends it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import msgspec

from loadtest.address import SECRETS_PATH, CallAddress, bearer, shown_url
from loadtest.call import CallOver, CallPlan, EndCause
from loadtest.refusal import refusal

_ANSWER_S = 10.0
_HANG_UP_S = 2.0
_UNKNOWN = (404, 405)


class _Secret(msgspec.Struct, frozen=True):
    value: str


def on_loopback(url: str) -> bool:
    """The host is this machine, by a name or an address that says so."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Signalling:
    """One call's HTTP. Close it with :meth:`aclose`. ``tls`` says whom to believe."""

    def __init__(self, plan: CallPlan, address: CallAddress, tls: ssl.SSLContext) -> None:
        self._plan = plan
        self._address = address
        self._bearer = plan.key
        self._location: str | None = None
        local = on_loopback(address.url)
        # A proxy can't reach our loopback.
        self._http = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=not local, verify=tls)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def take_secret(self) -> None:
        """Buy a client secret with the key; it opens the call in the key's place. Raises :class:`CallOver`."""
        url = self._address.beside(SECRETS_PATH)
        asked: dict[str, object] = {"session": {"type": "realtime"}}
        agent = dict(parse_qsl(urlsplit(self._address.url).query)).get("agent")
        if agent is not None:
            asked["agent"] = agent
        answer = await self._post(url, json=asked)
        try:
            self._bearer = msgspec.json.decode(answer.content, type=_Secret).value
        except msgspec.MsgspecError as error:
            raise CallOver(EndCause.NO_SESSION, f"{shown_url(url)} answered with no client secret") from error

    async def offer(self, sdp: str) -> str:
        """The answer's SDP. Raises :class:`CallOver`."""
        url = self._address.url
        answer = await self._post(url, content=sdp.encode(), headers={b"Content-Type": b"application/sdp"})
        location = answer.headers.get("Location")
        if location and urlsplit(whole := urljoin(url, location))[:2] == urlsplit(url)[:2]:
            self._location = whole  # the key goes to the server that was called, and to no other
        if not answer.text.startswith("v=0"):
            raise CallOver(EndCause.NO_SESSION, f"{shown_url(url)} answered with something that is no SDP")
        return answer.text

    async def hang_up(self) -> str | None:
        """Say that the call is over: POST .../hangup, or DELETE where that is not known. Returns what failed; a server
        that knows of no such call has nothing left to end."""
        if self._location is None:
            return None
        parts = urlsplit(self._location)
        try:
            answer = await self._http.post(
                parts._replace(path=parts.path + "/hangup").geturl(), headers=self._headers(), timeout=_HANG_UP_S
            )
            if answer.status_code in _UNKNOWN:
                answer = await self._http.delete(self._location, headers=self._headers(), timeout=_HANG_UP_S)
        except httpx.HTTPError as error:
            return f"hang-up: {str(error) or type(error).__name__}"
        return None if answer.is_success or answer.status_code in _UNKNOWN else f"hang-up: {answer.status_code}"

    async def _post(self, url: str, **content: object) -> httpx.Response:
        headers: Mapping[bytes, bytes] = content.pop("headers", {})  # type: ignore[assignment]
        try:
            async with asyncio.timeout(_ANSWER_S):  # for all of it: httpx counts from one piece to the next
                answer = await self._http.post(url, headers={**self._headers(), **headers}, **content)  # type: ignore[arg-type]
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise CallOver(EndCause.REFUSED, f"no answer at {shown_url(url)}: {why}") from error
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content, url, self._plan)
        return answer

    def _headers(self) -> dict[bytes, bytes]:
        return {b"Authorization": bearer(self._bearer)} if self._bearer else {}
