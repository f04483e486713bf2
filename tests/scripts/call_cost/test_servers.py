from __future__ import annotations

import sys

import pytest

from scripts.call_cost.servers import PORT, Subject, Usage, gateway, started


def subject(*words: str) -> Subject:
    return Subject("a server", "nothing", (sys.executable, *words), f"http://127.0.0.1:{PORT}/", "talk")


async def test_a_server_is_read_while_it_runs_at_the_port_that_was_free() -> None:
    async with started(subject("-m", "http.server", PORT, "--bind", "127.0.0.1"), None) as server:
        assert PORT not in server.url
        usage = server.usage()
    assert usage.cpu_s > 0
    assert usage.resident_bytes > 2**20
    assert usage.core_busy_s is None


async def test_a_server_that_ends_is_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match="a server nothing ended with 3 before it listened"):
        async with started(subject("-c", "raise SystemExit(3)"), None):
            raise AssertionError


def test_what_others_had_of_the_core_is_what_the_server_had_not() -> None:
    before, after = Usage(10.0, 1.0, 0, 2.0), Usage(20.0, 4.0, 0, 7.0)
    assert after.share_since(before) == pytest.approx(0.3)
    assert after.others_since(before) == pytest.approx(0.2)
    assert Usage(20.0, 4.0, 0, None).others_since(before) is None


def test_a_gateway_has_its_settings_and_refuses_no_call_for_its_load() -> None:
    command, environment = gateway({"ENGINES__VAD": "silero"}, module="another")
    assert command[1:4] == ("-m", "another", "serve")
    assert environment["OFFHOOK_ENGINES__VAD"] == "silero"
    assert environment["OFFHOOK_ADMISSION__BY_LOAD"] == "false"
