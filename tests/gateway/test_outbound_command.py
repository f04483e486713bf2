from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

import gateway.outbound_client
from gateway.outbound_client import LOST_AFTER, DialError, Dialling, gateway_client
from gateway.outbound_command import add_dial_command

Answer = httpx.Response | Exception
Respond = Callable[[httpx.Request], Answer]


def call(state: str, **more: Any) -> httpx.Response:
    return httpx.Response(201, json={"id": "out_0_1", "state": state, "answered_ms": None, "cause": None, **more})


def shown(state: str, **more: Any) -> httpx.Response:
    return httpx.Response(200, content=call(state, **more).content)


class Server:
    """Answers one request after another as it was told."""

    def __init__(self, *answers: Answer | type[BaseException]) -> None:
        self._answers: Iterator[Answer | type[BaseException]] = iter(answers)
        self.asked: list[tuple[str, str, str | None, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        key = request.headers.get("idempotency-key")
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.path, key, body))
        answer = next(self._answers)
        if isinstance(answer, httpx.Response):
            return answer
        raise answer


@pytest.fixture
def dial(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("OFFHOOK_KEY", raising=False)
    monkeypatch.setattr(gateway.outbound_client, "POLL_S", 0.0)

    def run(server: Server, *arguments: str) -> Result:
        def client(url: str, key: str | None) -> httpx.Client:
            return gateway_client(url, key, transport=httpx.MockTransport(server))

        monkeypatch.setattr(gateway.outbound_client, "gateway_client", client)
        app = typer.Typer()
        add_dial_command(app)
        return CliRunner().invoke(app, list(arguments))

    return run


def test_it_tells_how_the_call_goes(dial: Callable[..., Result]) -> None:
    server = Server(
        call("dialling"),
        shown("dialling"),
        shown("ringing"),
        shown("answered", answered_ms=3.0),
        shown("ended", answered_ms=3.0, cause="caller_hung_up"),
    )
    result = dial(server, "sip:bob@pbx", "--agent", "sales", "--caller", "desk", "--ring-s", "9")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "dialling (out_0_1)",
        "ringing",
        "answered",
        "ended: the other side hung up",
    ]
    method, path, key, body = server.asked[0]
    assert (method, path) == ("POST", "/v1/calls")
    assert key is not None
    assert body == {"to": "sip:bob@pbx", "agent": "sales", "caller": "desk", "ring_s": 9}
    assert server.asked[1][:2] == ("GET", "/v1/calls/out_0_1")


def test_nobody_answered(dial: Callable[..., Result]) -> None:
    result = dial(Server(call("dialling"), shown("ended", cause="busy")), "sip:bob@pbx", "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["cause"] == "busy"
    assert "the line is busy" in result.stderr


def test_an_unknown_cause_is_told_as_it_is(dial: Callable[..., Result]) -> None:
    result = dial(Server(call("dialling"), shown("ended", cause="odd")), "sip:bob@pbx")
    assert "ended: odd" in result.stdout


def test_it_may_leave_once_the_call_is_placed(dial: Callable[..., Result]) -> None:
    server = Server(call("dialling"))
    assert dial(server, "sip:bob@pbx", "--detach").exit_code == 0
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "exit_code"), [(400, 2), (404, 2), (403, 3), (429, 3), (503, 3), (401, 1), (500, 1), (301, 1)]
)
def test_a_refusal_says_why(dial: Callable[..., Result], status: int, exit_code: int) -> None:
    body = {"error": {"code": "hour_limit", "message": "Too many."}}
    result = dial(Server(httpx.Response(status, json=body, headers={"Retry-After": "7"})), "sip:bob@pbx")
    assert result.exit_code == exit_code
    assert result.stderr == "offhook dial: hour_limit: Too many. Try again in 7 s.\n"


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"error": 1}'])
def test_what_is_no_gateway_is_told_by_its_status(dial: Callable[..., Result], content: bytes) -> None:
    result = dial(Server(httpx.Response(404, content=content)), "sip:bob@pbx")
    assert (result.exit_code, result.stderr) == (2, "offhook dial: HTTP 404\n")
    result = dial(Server(httpx.Response(201, content=content)), "sip:bob@pbx")
    assert (result.exit_code, result.stderr) == (1, "offhook dial: what answers there is no gateway of ours\n")


def test_a_gateway_that_is_not_there(dial: Callable[..., Result]) -> None:
    server = Server(httpx.ConnectError("refused"))
    result = dial(server, "sip:bob@pbx")
    assert result.exit_code == 1
    assert "http://127.0.0.1:8080 does not answer: refused" in result.stderr
    assert len(server.asked) == 1


def test_a_lost_answer_is_asked_for_again_with_the_same_key(dial: Callable[..., Result]) -> None:
    server = Server(httpx.ReadTimeout("slow"), call("ended", cause="busy"))
    assert dial(server, "sip:bob@pbx").exit_code == 4
    first, second = server.asked
    assert first == second
    assert first[2]


def test_a_gateway_that_goes_away_is_noticed(dial: Callable[..., Result]) -> None:
    server = Server(call("dialling"), shown("ringing"), *[httpx.ReadError("gone")] * LOST_AFTER)
    result = dial(server, "sip:bob@pbx")
    assert (result.exit_code, result.stderr) == (1, "offhook dial: lost sight of the call out_0_1\n")
    server = Server(call("dialling"), httpx.Response(503), httpx.ReadError("slow"), shown("ended", cause="busy"))
    assert dial(server, "sip:bob@pbx").exit_code == 4
    assert dial(Server(call("dialling"), httpx.Response(404)), "sip:bob@pbx").exit_code == 1


def test_ctrl_c_hangs_up(dial: Callable[..., Result]) -> None:
    server = Server(call("dialling"), KeyboardInterrupt, httpx.Response(200))
    assert dial(server, "sip:bob@pbx").exit_code == 130
    assert server.asked[-1][:2] == ("DELETE", "/v1/calls/out_0_1")
    result = dial(Server(call("dialling"), KeyboardInterrupt, httpx.ReadError("gone")), "sip:bob@pbx")
    assert result.exit_code == 130
    assert "may be up still" in result.stdout


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8080", "http://", "http://a:x", "http://a:99999"])
def test_a_bad_url(url: str) -> None:
    with pytest.raises(DialError, match="not an http") as caught:
        gateway_client(url, None)
    assert caught.value.exit_code == 2


def test_the_key_is_sent_as_a_header_can() -> None:
    with gateway_client("http://127.0.0.1:1", "schlüssel") as client:
        assert client.headers.raw[-1] == (b"Authorization", "Bearer schlüssel".encode())
    with pytest.raises(DialError, match="one line"):
        gateway_client("http://127.0.0.1:1", "a\nb")


def test_polling_is_paced() -> None:
    slept: list[float] = []
    server = Server(call("dialling"), shown("ended", cause="busy"))
    with gateway_client("http://127.0.0.1:1", None, transport=httpx.MockTransport(server)) as client:
        dialling = Dialling(client, lambda _: None, sleep=slept.append)
        dialling.watch(dialling.place({"to": "x"}))
    assert slept == [gateway.outbound_client.POLL_S]
