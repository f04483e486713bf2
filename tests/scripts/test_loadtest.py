from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scripts import loadtest

URL = "ws://127.0.0.1:1234/v1/realtime"
HTML = Path("artifacts/loadtest/report.html")
OWN = ["--html", str(HTML), "--json", str(HTML.with_suffix(".json")), "--url", URL]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ([], ["talk", *OWN, "--calls", "20", "--ramp", "5", "--for", "60"]),
        (["--calls", "5"], ["talk", "--calls", "5", *OWN, "--ramp", "5", "--for", "60"]),
        (["--for=9"], ["talk", "--for=9", *OWN, "--calls", "20", "--ramp", "5"]),
        (["churn"], ["churn", *OWN]),
        (["churn", "--html", "x.html"], ["churn", "--html", "x.html", *OWN[2:]]),
    ],
)
def test_what_is_given_wins_over_what_is_usual(given: list[str], arguments: list[str]) -> None:
    assert loadtest.arguments(given, URL, HTML) == arguments


def test_ctrl_c_is_the_load_tests_own_to_answer() -> None:
    """It reaches all that runs in the terminal."""
    slow = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(1); raise SystemExit(7)"
    assert loadtest.run_out([sys.executable, "-c", slow]) == 7


def test_a_gateway_of_its_own_is_started_and_stopped() -> None:
    with loadtest.gateway() as url:
        assert url.startswith("ws://127.0.0.1:")
        assert url.endswith("/v1/realtime")


def test_a_gateway_that_does_not_start_is_the_end() -> None:
    with pytest.raises(SystemExit) as ended, loadtest.gateway(max_calls=0):
        pass
    assert ended.value.code == 2


def test_a_browser_is_opened_where_somebody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delitem(os.environ, name, raising=False)
    assert not loadtest.on_a_screen()
    monkeypatch.setitem(os.environ, "DISPLAY", ":0")
    assert loadtest.on_a_screen()
    monkeypatch.delitem(os.environ, "DISPLAY")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert loadtest.on_a_screen()
