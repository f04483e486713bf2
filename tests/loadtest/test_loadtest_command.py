from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from loadtest.call import PhoneOptions
from loadtest.load_run import LoadRun
from loadtest.loadtest_command import add_loadtest_command
from loadtest.outcome import CallOutcome, Fate
from loadtest.readings import Machine
from loadtest.run import RunPlan, RunRecord
from loadtest.run_options import RunOptions
from loadtest.run_report import CallCounts, RunReport, Verdict, to_json

URL = "ws://127.0.0.1:1/v1/realtime"
GOOD = RunReport(
    verdict=Verdict.GOOD,
    scenario="smoke",
    seed=1,
    started_at="2026-01-01T00:00:00+00:00",
    length_s=10.0,
    machine=Machine(cores=2),
    goodput=1.0,
    calls=CallCounts(offered=2, completed=2, accepted=2, good=2, most_up=2),
)


def invoke(*args: str, env: dict[str, str] | None = None) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_loadtest_command(app)
    return CliRunner().invoke(app, ["loadtest", *args], env=env)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LoadRun]:
    """Runs that were asked for; each is good."""
    runs: list[LoadRun] = []

    async def once(run: LoadRun, calls: int | None = None) -> RunReport:
        runs.append(run)
        return GOOD

    monkeypatch.setattr(LoadRun, "once", once)
    return runs


def test_without_a_scenario_the_library_is_listed() -> None:
    result = invoke()
    assert result.exit_code == 0
    listed, _, hint = result.stdout.partition("\n\n")
    names = [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")]
    assert names == ["burst", "churn", "interrupters", "ivr", "noisy", "parked", "smoke", "soak", "talk"]
    assert "offhook loadtest talk --url" in hint


def test_a_good_run(asked: list[LoadRun], tmp_path: Path) -> None:
    page, document = tmp_path / "report.html", tmp_path / "report.json"
    words = ["--calls", "3", "--ramp", "0", "--for", "9", "--seed", "7", "--agent", "anna", "--metrics", "off"]
    result = invoke("smoke", "--url", URL, *words, "--json", str(document), "--html", str(page), "--pin", "0,1")
    assert result.exit_code == 0, result.output
    assert asked[0].options == RunOptions(
        "smoke", (URL,), agent="anna", calls=3, ramp_s=0, for_s=9, seed=7, metrics="off", pin="0,1"
    )
    assert asked[0].options.cores == (0, 1)
    assert json.loads(document.read_bytes())["goodput"] == 1.0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert "smoke: GOOD" in result.stderr
    assert result.stdout == ""
    assert not asked[0].recordings.exists()


def test_the_options_of_phones_and_no_secret_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RunPlan] = []

    async def held(plan: RunPlan, progress: object, interruption: object) -> RunRecord:
        plans.append(plan)
        return RunRecord()

    monkeypatch.setattr("loadtest.load_run.run_load", held)
    words = "--caller +1555 --user alice --codec pcma --parameter a=b=c --signed-url wss://x/?key=hidden --key hidden"
    environment = {"OFFHOOK_SIP_PASSWORD": "hidden", "TWILIO_AUTH_TOKEN": "hidden"}
    result = invoke("smoke", "--url", "sip:h", "--json", "-", *words.split(), env=environment)
    (plan,) = plans
    url = "wss://x/?key=hidden"
    assert plan.job.phone == PhoneOptions("+1555", "alice", "hidden", "pcma", {"a": "b=c"}, "hidden", url)
    assert "hidden" not in result.stdout + result.stderr
    options = json.loads(result.stdout)["options"]
    told = {name: options[name] for name in ("caller", "user", "password", "codec", "auth_token", "parameters")}
    assert told == {
        "caller": "+1555",
        "user": "alice",
        "password": "…",
        "codec": "pcma",
        "auth_token": "…",
        "parameters": "a=…",
    }
    assert invoke("smoke", "--url", "sip:h", "--parameter", "novalue").exit_code == 2


def test_json_on_standard_output_and_nothing_else_there(asked: list[LoadRun]) -> None:
    result = invoke("smoke", "--url", URL, "--json", "-", "--quiet")
    assert json.loads(result.stdout)["verdict"] == "good"


@pytest.mark.parametrize(
    ("verdict", "interrupted", "code"),
    [
        (Verdict.GOOD, False, 0),
        (Verdict.NOT_GOOD, False, 1),
        (Verdict.VOID, False, 3),
        (Verdict.INTERRUPTED, True, 130),
        (Verdict.NOT_GOOD, True, 130),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, verdict: Verdict, interrupted: bool, code: int) -> None:
    async def once(run: LoadRun, calls: int | None = None) -> RunReport:
        return msgspec.structs.replace(GOOD, verdict=verdict, interrupted=interrupted, reasons=("because",))

    monkeypatch.setattr(LoadRun, "once", once)
    result = invoke("smoke", "--url", URL)
    assert result.exit_code == code
    assert "because" in result.stderr


def test_a_baseline_that_the_run_is_worse_than(asked: list[LoadRun], tmp_path: Path) -> None:
    before, foreign = tmp_path / "before.json", tmp_path / "foreign.json"
    before.write_bytes(to_json(GOOD))
    assert invoke("smoke", "--url", URL, "--baseline", str(before)).exit_code == 0
    foreign.write_bytes(to_json(msgspec.structs.replace(GOOD, scenario="talk")))
    result = invoke("smoke", "--url", URL, "--baseline", str(foreign))
    assert result.exit_code == 1
    assert "NOT COMPARABLE" in result.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("nothing-of-the-kind", "--url", URL), "no scenario 'nothing-of-the-kind'"),
        (("smoke",), "needs a server to call"),
        (("smoke", "--url", "ftp://127.0.0.1/"), "not a ws://"),
        (("ivr", "--url", URL), "ivr is for"),
        (("smoke", "--url", URL, "--json", "/no/such/folder/report.json"), "no such folder"),
        (("smoke", "--url", URL, "--json", "/tmp"), "it is a folder"),
        (("smoke", "--url", URL, "--html", "/tmp"), "it is a folder"),
        (("smoke", "--url", URL, "--html", "-"), "the page goes to a file"),
        (("smoke", "--url", URL, "--html", "x.out", "--json", "./x.out"), "both reports"),
        (("smoke", "--url", URL, "--baseline", "/no/such/file"), "/no/such/file can't be read"),
        (("smoke", "--url", URL, "--metrics", "http://[::1/metrics"), "not the address of metrics"),
        (("smoke", "--url", "sip:h", "--codec", "opus"), "a codec is pcmu or pcma"),
        (("smoke", "--url", URL, "--pin", "one"), "cores are numbers"),
        (("smoke", "--url", URL, "--pin", "100000", "--metrics", "off"), "(--pin)"),
        (("smoke", "--url", URL, "--calls", "100000", "--for", "100000"), "that would be"),
        (("smoke", "--url", URL, "--find-capacity", "--calls", "9", "--most", "3"), "a climb begins"),
    ],
)
def test_what_can_not_be_done_is_said_before_anything_is_called(args: tuple[str, ...], why: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.startswith("offhook loadtest: ")


def test_a_report_that_can_not_be_written_loses_neither_the_other_nor_itself(
    asked: list[LoadRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page, full = tmp_path / "report.html", Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    result = invoke("smoke", "--url", URL, "--json", str(full), "--html", str(page))
    assert result.exit_code == 2
    assert "smoke: GOOD" in result.stderr
    assert "cannot write /dev/full: No space left on device" in result.stderr
    assert page.read_text("utf-8").startswith("<!doctype html>")
    (saved,) = tmp_path.glob("offhook-report-*.json")
    assert json.loads(saved.read_bytes())["verdict"] == "good"
    assert str(saved) in result.stderr


def test_a_baseline_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    result = invoke("smoke", "--url", URL, "--baseline", str(file))
    assert result.exit_code == 2
    assert "not the report of a load test" in result.stderr


def outcome(number: int, *faults: str) -> CallOutcome:
    return CallOutcome(
        number=number,
        transport="websocket",
        fate=Fate.REFUSED if faults else Fate.COMPLETED,
        offered_s=0.0,
        answered_s=None if faults else 0.1,
        ended_s=5.0,
        end_cause="busy" if faults else "hangup",
        setup_ms=10.0,
        frames_due=0 if faults else 100,
        faults=faults,
    )


class Server:
    """Holds so many calls; more are refused. From ``void_from`` calls on the load test itself is late."""

    def __init__(self, capacity: int, void_from: int = 1_000_000, stop_at: int | None = None) -> None:
        self.capacity = capacity
        self.void_from = void_from
        self.stop_at = stop_at
        self.recorded: list[str] = []

    async def run(self, plan: RunPlan, progress: object, interruption: object) -> RunRecord:
        lines = len({arrival.line for arrival in plan.arrivals})
        folder = Path(plan.job.recordings)
        (folder / "call-0.wav").write_text(f"of {lines}")
        self.recorded = [path.read_text() for path in folder.parent.glob("*.wav")]
        if lines == self.stop_at:
            return RunRecord(interrupted=True)
        outcomes = [outcome(n, *(() if n < self.capacity else ("refused",))) for n in range(lines)]
        late = ["generator 0 was late"] if lines >= self.void_from else []
        return RunRecord(outcomes=outcomes, length_s=10.0, void_reasons=late)


def climb(monkeypatch: pytest.MonkeyPatch, server: Server, *args: str) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setattr("loadtest.load_run.run_load", server.run)
    result = invoke("talk", "--url", URL, "--metrics", "off", "--find-capacity", "--json", "-", *args)
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_a_climb_reports_the_largest_level_that_was_held_and_its_knee(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(capacity=10)
    code, report, told = climb(monkeypatch, server, "--calls", "4")
    assert code == 0
    knee = report["knee"]
    assert (knee["held"], knee["broke"]) == (10, 11)
    assert [level["calls"] for level in knee["levels"]] == [4, 8, 16, 12, 10, 11]
    assert [level["held"] for level in knee["levels"]] == [True, True, False, False, True, False]
    assert report["calls"]["offered"] == report["options"]["calls"] == 10
    assert "12 calls: missed, goodput 83.3%" in told
    assert "capacity       10 calls" in told
    assert server.recorded == ["of 10"]  # the audio that is kept is that of the level reported


def test_a_climb_whose_generators_are_the_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    code, report, _ = climb(monkeypatch, Server(capacity=100, void_from=8), "--calls", "4")
    assert code == 0
    assert report["knee"]["held"] == 7
    assert "the load test itself was late" in report["knee"]["stopped_by"]
    assert [level["tries"] for level in report["knee"]["levels"] if level["calls"] == 8] == [1, 2, 3]


def test_a_climb_that_holds_nothing_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    code, report, _ = climb(monkeypatch, Server(capacity=0))
    assert code == 1
    assert report["knee"]["held"] == 0


def test_a_climb_where_nobody_is_there_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken_off(plan: RunPlan, progress: object, interruption: object) -> RunRecord:
        return RunRecord(outcomes=[outcome(0, "failed")], length_s=15.0, broken_off="no call came about")

    monkeypatch.setattr("loadtest.load_run.run_load", broken_off)
    result = invoke("talk", "--url", URL, "--metrics", "off", "--find-capacity", "--calls", "8", "--json", "-")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"], report["interrupted"]) == (1, "not_good", False)
    assert [level["calls"] for level in report["knee"]["levels"]] == [8]
    assert report["knee"]["stopped_by"] == "no call came about"


def test_a_climb_beyond_what_can_be_offered_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.arrivals.MAX_CALLS", 30)
    code, report, _ = climb(monkeypatch, Server(capacity=100), "--for", "60")
    assert code == 0
    assert (report["knee"]["held"], report["interrupted"]) == (8, False)
    assert "16 calls can't be offered: that would be" in report["knee"]["stopped_by"]


def test_a_climb_that_is_interrupted_reports_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    code, report, _ = climb(monkeypatch, Server(capacity=100, stop_at=4))
    assert code == 130
    assert (report["knee"]["held"], report["interrupted"]) == (2, True)
