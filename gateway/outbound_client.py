"""A running gateway's calls from outside: have it place one, watch it, hang it up (``offhook dial``)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx

GATEWAY_ERROR = 1
USAGE_ERROR = 2
REFUSED = 3

POLL_S = 0.25
TIMEOUT_S = 10.0
LOST_AFTER = 20
"""Polls that failed one after another: the gateway is gone."""

_WORDS = {
    "busy": "the line is busy",
    "no_answer": "nobody answered",
    "declined": "the call was declined",
    "unreachable": "the destination cannot be reached",
    "not_found": "there is no such destination",
    "forbidden": "the other side forbids it",
    "failed": "the call failed",
    "operator_hung_up": "it was hung up here",
    "server_drain": "the gateway is stopping",
    "server_stop": "the gateway stopped",
    "internal_error": "something went wrong in the gateway",
    "caller_hung_up": "the other side hung up",
    "agent_hung_up": "the agent hung up",
    "outbound_limit": "its time was up",
}


class DialError(Exception):
    """It ends here, with this exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Dialling:
    """One call, by way of the gateway that ``client`` speaks to."""

    def __init__(
        self,
        client: httpx.Client,
        say: Callable[[str], None],
        *,
        sleep: Callable[[float], None] = time.sleep,
        new_key: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._client = client
        self._say = say
        self._sleep = sleep
        self._new_key = new_key

    def place(self, request: dict[str, Any]) -> dict[str, Any]:
        """The call as it begins. A request whose answer was lost is sent once more, and places no second call. Raises
        :class:`DialError`."""
        headers = {"Idempotency-Key": self._new_key()}
        try:
            try:
                response = self._client.post("/v1/calls", json=request, headers=headers)
            except httpx.ConnectError:
                raise
            except httpx.TransportError:
                response = self._client.post("/v1/calls", json=request, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DialError(f"the gateway at {self._client.base_url} does not answer: {error}", GATEWAY_ERROR) from None
        if response.status_code != 201:
            raise DialError(_refusal(response), _exit_code(response.status_code))
        return _object(response)

    def watch(self, call: dict[str, Any]) -> dict[str, Any]:
        """Tell how it goes, and return the call as it ended. Raises :class:`DialError` when it is lost sight of."""
        told, failures = "", 0
        while True:
            if call["state"] != told:
                told = call["state"]
                self._say(_state_line(call))
            if told == "ended":
                return call
            self._sleep(POLL_S)
            try:
                response = self._client.get(f"/v1/calls/{call['id']}")
            except httpx.HTTPError:
                response = None
            if response is not None and response.status_code == 200:
                call, failures = _object(response), 0
                continue
            failures += 1
            if failures >= LOST_AFTER or (response is not None and response.status_code < 500):
                raise DialError(f"lost sight of the call {call['id']}", GATEWAY_ERROR)

    def hang_up(self, call_id: str) -> None:
        try:
            self._client.delete(f"/v1/calls/{call_id}")
        except httpx.HTTPError:
            self._say(f"the gateway does not answer: the call {call_id} may be up still")


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("id"), str) or "state" not in found:
        raise DialError("what answers there is no gateway of ours", GATEWAY_ERROR)
    return found


def _refusal(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        said = f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        said = f"HTTP {response.status_code}"
    wait = response.headers.get("retry-after")
    return f"{said} Try again in {wait} s." if wait is not None else said


def _exit_code(status: int) -> int:
    if status in (403, 429, 503):
        return REFUSED
    return USAGE_ERROR if status in (400, 404, 413, 422) else GATEWAY_ERROR


def _state_line(call: dict[str, Any]) -> str:
    match call["state"]:
        case "dialling":
            return f"dialling ({call['id']})"
        case "ended":
            cause = call.get("cause") or "unknown"
            return f"ended: {_WORDS.get(cause, cause)}"
        case state:
            return str(state)


def gateway_client(url: str, key: str | None, **options: Any) -> httpx.Client:
    """``options`` go to httpx. Raises :class:`DialError`."""
    if key is not None and not key.isprintable():
        raise DialError("a key is one line of printable text", USAGE_ERROR)
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL:
        base = httpx.URL()
    if base.scheme not in ("http", "https") or not base.host or (base.port or 1) > 65_535:
        raise DialError(f"not an http:// or https:// URL: {url}", USAGE_ERROR)
    headers = {} if key is None else {b"Authorization": f"Bearer {key}".encode()}
    return httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S, **options)
