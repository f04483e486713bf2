"""REST requests over real sockets: what arrives, what is tried again, and what is given up in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gateway.carrier_settings import TwilioSettings
from gateway.transports.carriers import rest
from gateway.transports.carriers.dialect import RestRequest
from gateway.transports.carriers.rest import RestFailed, rest_client
from gateway.transports.carriers.twilio import Twilio
from tests.gateway.transports.carriers.fake_twilio import ACCOUNT, CALL, TOKEN
from tests.listening import listening

PATH = f"/2010-04-01/Accounts/{ACCOUNT}/Calls/{CALL}.json"
HANG_UP = RestRequest("POST", PATH, {"Status": "completed"}, form=True, done=frozenset({404}))
TRANSFER = RestRequest("POST", PATH, {"Twiml": "<Response/>"}, form=True, repeatable=False)


@dataclass
class Api:
    """Answers with these statuses in turn, then with 200; 0 closes the connection without an answer."""

    statuses: list[int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    silent: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((line for line in head.lower().splitlines() if line.startswith("content-length:")), ":0")
                body = await reader.readexactly(int(length.partition(":")[2]))
                self.requests.append(head + body.decode())
                if self.silent:
                    await reader.read()
                    return
                status = self.statuses.pop(0) if self.statuses else 200
                if not status:
                    return
                writer.write(f"HTTP/1.1 {status} X\r\nLocation: /x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
                await writer.drain()


@contextlib.asynccontextmanager
async def api(*statuses: int) -> AsyncIterator[tuple[Api, Twilio, rest.RestClient]]:
    there = Api(list(statuses))
    async with listening(there.serve) as port, rest_client() as client:
        settings = TwilioSettings.model_validate({"auth_token": TOKEN, "api_url": f"http://127.0.0.1:{port}/"})
        yield there, Twilio(settings), client


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "FIRST_PAUSE_S", 0.0)


async def test_what_arrives() -> None:
    async with api() as (there, twilio, client):
        await client.send(twilio, HANG_UP)
        (request,) = there.requests
        assert request.startswith(f"POST {PATH} HTTP/1.1\r\n")
        assert "application/x-www-form-urlencoded" in request
        assert request.endswith("\r\n\r\nStatus=completed")
        assert "authorization: basic qumw" in request.lower()


@pytest.mark.parametrize(
    ("request_", "statuses", "attempts", "status"),
    [
        (HANG_UP, (404,), 1, None),
        (HANG_UP, (500, 0, 200), 3, None),
        (HANG_UP, (401,), 1, 401),
        (HANG_UP, (302,), 1, 302),
        (HANG_UP, (500, 502, 503), 3, 503),
        (TRANSFER, (500,), 1, 500),
        (TRANSFER, (404,), 1, 404),
        (TRANSFER, (429, 429, 200), 3, None),
    ],
)
async def test_what_is_tried_again(
    request_: RestRequest, statuses: tuple[int, ...], attempts: int, status: int | None
) -> None:
    async with api(*statuses) as (there, twilio, client):
        if status is None:
            await client.send(twilio, request_)
        else:
            with pytest.raises(RestFailed) as failed:
                await client.send(twilio, request_)
            assert (failed.value.code, failed.value.status) == ("refused", status)
        assert len(there.requests) == attempts


async def test_a_transfer_that_may_have_arrived_is_not_sent_again() -> None:
    async with api(0) as (there, twilio, client):
        with pytest.raises(RestFailed, match="unreachable"):
            await client.send(twilio, TRANSFER)
        assert len(there.requests) == 1


async def test_an_api_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "WHOLE_S", 0.2)
    async with api() as (there, twilio, client):
        there.silent = True
        with pytest.raises(RestFailed, match="unreachable"):
            await client.send(twilio, HANG_UP)


async def test_one_that_is_not_there_and_one_without_credentials() -> None:
    async with rest_client() as client:
        nowhere = TwilioSettings.model_validate({"auth_token": TOKEN, "api_url": "http://127.0.0.1:1"})
        with pytest.raises(RestFailed, match="unreachable"):
            await client.send(Twilio(nowhere), TRANSFER)
        with pytest.raises(RestFailed, match="no_credentials"):
            await client.send(Twilio(TwilioSettings()), HANG_UP)
