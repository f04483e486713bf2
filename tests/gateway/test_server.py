"""Real sockets and real processes: how the gateway starts and how it stops."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from engines.api import EngineError
from engines.registry import BACKENDS, BackendSpec
from gateway.engine_settings import EngineSettings
from gateway.null_settings import NullSettings
from gateway.server import SWITCH_S, StartError, listening_socket, serve
from gateway.settings import ConfigurationError, Settings

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
STOP_S = 30.0


class Process:
    """``offhook serve`` on a free port."""

    def __init__(self, folder: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        code = "from gateway.cli import main; main()"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OFFHOOK_")}
        self.log = (folder / "log.txt").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--preset", "null", "--port", "0", *flags],
            cwd=folder,
            env={**clean, "PYTHONPATH": str(ROOT), **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def url(self) -> str:
        """Blocks until it takes calls."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line.startswith("Listening on http"), (line, self._process.poll(), self.logged())
        return line.removeprefix("Listening on ")

    def logged(self) -> str:
        self.log.flush()
        return Path(self.log.name).read_text("utf-8")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        return self._process.wait(STOP_S)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.log.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as stack:

        def one(*flags: str, **kwargs: Any) -> Process:
            process = Process(tmp_path, *flags, **kwargs)
            stack.callback(process.end)
            return process

        yield one


def get(url: str | urllib.request.Request, **kwargs: Any) -> Any:
    with urllib.request.urlopen(url, timeout=10, **kwargs) as response:
        return json.load(response)


def dial(url: str, query: str = "?agent=default", **kwargs: Any) -> ClientConnection:
    return connect(url.replace("http", "ws", 1) + "/v1/realtime" + query, **kwargs)


def everything(call: Connection) -> tuple[list[str], int, str]:
    """The types of all events until the server closes, its code and its reason."""
    types: list[str] = []
    try:
        while True:
            types.append(json.loads(call.recv(timeout=STOP_S))["type"])
    except ConnectionClosed as closed:
        frame = closed.rcvd
    assert frame is not None, "the server vanished"
    return types, frame.code, frame.reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_with_zero(start: Callable[..., Process], number: int) -> None:
    for _ in range(3):
        process = start()
        url = process.url()
        assert get(url + "/readyz")["status"] == "ready"
        process.signal(number)
        assert process.exit_code() == 0


def test_on_sigterm_a_live_call_hears_goodbye_and_ends_with_a_cause(start: Callable[..., Process]) -> None:
    process = start("--drain-s", "0")
    with dial(process.url(), query="") as call:
        assert json.loads(call.recv())["type"] == "session.created"
        process.signal(signal.SIGTERM)
        types, code, reason = everything(call)
    assert "response.output_audio.delta" in types
    assert (code, reason) == (1000, "server_drain")
    assert process.exit_code() == 0


def test_an_operator_drains_it_as_a_signal_does(start: Callable[..., Process]) -> None:
    process = start("--drain-s", "0")
    url = process.url()
    with dial(url, query="") as call, urllib.request.urlopen(url + "/console/events", timeout=STOP_S) as console:
        assert json.loads(call.recv())["type"] == "session.created"
        assert get(urllib.request.Request(url + "/console/drain", method="POST"))["stops"]
        process.signal(signal.SIGTERM)  # changes nothing: it drains already
        types, code, reason = everything(call)
        told = console.read().decode()
    assert "response.output_audio.delta" in types
    assert (code, reason) == (1000, "server_drain")
    assert told.endswith('event: end\ndata: {"reason":"drained"}\n\n')
    assert process.exit_code() == 0
    assert "Traceback" not in process.logged()


def test_while_it_drains_calls_go_on_and_new_ones_are_refused(start: Callable[..., Process]) -> None:
    process = start("--drain-s", "60")
    url = process.url()
    with dial(url) as call:
        call.recv()
        process.signal(signal.SIGTERM)
        while not _is_draining(url):
            pass
        with contextlib.closing(dial(url)) as late:
            types, code, reason = everything(late)
        assert (types, code, reason) == ([], 1013, "draining")
        call.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "nope"}))
        while json.loads(call.recv(timeout=STOP_S))["type"] != "error":
            pass
    assert process.exit_code() == 0


def _is_draining(url: str) -> bool:
    try:
        return bool(get(url + "/readyz")["status"] == "draining")
    except urllib.error.HTTPError as error:
        with error:
            return bool(json.load(error)["status"] == "draining")


def test_a_second_ctrl_c_hangs_up_at_once(start: Callable[..., Process]) -> None:
    process = start("--drain-s", "600")
    url = process.url()
    with dial(url) as call:
        call.recv()
        process.signal(signal.SIGINT)
        while not _is_draining(url):
            pass
        process.signal(signal.SIGINT)
        _, code, reason = everything(call)
    assert (code, reason) == (1000, "server_stop")
    assert process.exit_code() == 0


def test_over_capacity_the_answer_is_instant(start: Callable[..., Process]) -> None:
    process = start("--max-calls", "1")
    url = process.url()
    with dial(url, query="") as first:
        first.recv()
        with dial(url) as second:
            assert everything(second) == ([], 1013, "busy")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


def test_a_message_beyond_the_limit_closes_with_1009(start: Callable[..., Process]) -> None:
    process = start(environ={"OFFHOOK_MAX_MESSAGE_BYTES": "2048"})
    with dial(process.url()) as call:
        call.send("x" * 3_000)
        assert everything(call)[1] == 1009


def test_a_taken_port_is_told_before_anything_is_loaded(start: Callable[..., Process]) -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        assert process.exit_code() == 1
    assert process.logged().startswith(f"error (port_taken): cannot listen on 127.0.0.1:{port}: ")


def test_over_tls_with_a_key(start: Callable[..., Process], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    flags = ("--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key))
    url = start(*flags, environ={"OFFHOOK_KEY": "sesame"}).url()
    assert url.startswith("https://0.0.0.0:")
    url = url.replace("0.0.0.0", "127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(cert))
    assert get(url + "/readyz", context=trusting)["status"] == "ready"
    protocols: Any = ["realtime", "openai-insecure-api-key.sesame"]
    with dial(url, ssl=trusting, subprotocols=protocols) as call:
        assert call.subprotocol == "realtime"
        assert json.loads(call.recv())["type"] == "session.created"


# --- in this process --------------------------------------------------------------------------------------------


def test_in_process_it_serves_until_told_to_stop() -> None:
    said: list[str] = []

    def announce(line: str) -> None:
        said.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    serve(Settings(preset="null", port=0, null=NullSettings(tts_ms=50)), announce=announce)
    (where, fakes) = "".join(said).split("\n")
    assert where.startswith("Listening on http")
    assert fakes.startswith("FAKE engines (vad, turn, stt, llm, tts)")
    assert "tts 50 ms" in fakes
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_process_threads_give_way_to_the_loop_while_it_serves() -> None:
    given_s: list[float] = []

    def announce(_: str) -> None:
        given_s.append(sys.getswitchinterval())
        os.kill(os.getpid(), signal.SIGTERM)

    before_s = sys.getswitchinterval()
    serve(Settings(preset="null", port=0), announce=announce)
    assert given_s == [pytest.approx(SWITCH_S)]
    assert sys.getswitchinterval() == before_s


def test_in_process_two_signals_at_once() -> None:
    def announce(_: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    serve(Settings(preset="null", port=0, drain_s=600), announce=announce)


def test_in_process_engines_that_are_not_there() -> None:
    with pytest.raises(ConfigurationError) as caught:
        serve(Settings(preset="nonesuch", port=0), announce=pytest.fail)
    assert caught.value.code == "unknown_preset"


def test_in_process_engines_that_break(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("gateway.app.open_engines", broken)
    with pytest.raises(StartError, match="oops") as caught:
        serve(Settings(preset="null", port=0), announce=pytest.fail)
    assert caught.value.code == "engines_failed"


def test_in_process_a_signal_while_engines_load(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def never(*_: Any, **__: Any) -> Any:
        import asyncio

        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr("gateway.app.open_engines", never)
    serve(Settings(preset="null", port=0), announce=pytest.fail)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.write_text("no certificate", "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        serve(Settings(preset="null", port=0, tls_cert=pem, tls_key=pem), announce=pytest.fail)
    assert caught.value.code == "tls_unreadable"


def test_addresses_that_cannot_be_listened_on() -> None:
    with pytest.raises(StartError) as unknown:
        listening_socket("no.such.host.invalid", 0)
    assert unknown.value.code == "host_unknown"
    with pytest.raises(StartError) as foreign:
        listening_socket("192.0.2.1", 0)
    assert foreign.value.code == "cannot_listen"


def test_a_name_with_both_families_is_listened_on_over_ipv4() -> None:
    with listening_socket("localhost", 0) as listener:
        assert listener.family is socket.AF_INET


def test_in_process_an_interpreter_for_the_hosts_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = dataclasses.replace(BACKENDS["scripted-llm"], host="mlx")
    monkeypatch.setitem(cast(dict[str, BackendSpec], BACKENDS), "scripted-llm", hosted)
    with pytest.raises(EngineError, match="/no/such/python") as caught:
        serve(
            Settings(preset="null", port=0, engines=EngineSettings(mlx_python=Path("/no/such/python"))),
            announce=pytest.fail,
        )
    assert caught.value.code == "host_failed"


def test_in_process_engines_in_a_host_are_served_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = dataclasses.replace(BACKENDS["scripted-tts"], host="cpu")
    monkeypatch.setitem(cast(dict[str, BackendSpec], BACKENDS), "scripted-tts", hosted)
    before = child_pids()  # other tests' libraries leave helpers behind (multiprocessing's resource tracker)
    children: set[int] = set()

    def announce(_: str) -> None:
        children.update(child_pids() - before)
        os.kill(os.getpid(), signal.SIGTERM)

    serve(Settings(preset="null", port=0), announce=announce)
    (host,) = children
    assert not Path(f"/proc/{host}").exists()


def child_pids() -> set[int]:
    """Of the main thread, which starts the hosts."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()}
