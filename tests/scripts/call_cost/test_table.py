from __future__ import annotations

from scripts.call_cost.table import costs, ratios, typical
from tests.scripts.call_cost.rig import window


def test_a_void_window_counts_only_if_all_are() -> None:
    windows = [window(cpu_share=share) for share in (0.15, 0.25, 0.95)]
    void = window(cpu_share=0.06, void=True)
    found = typical([*windows, void, void, void])
    assert found is not None
    assert round(found.cpu_share, 6) == 0.02
    found = typical([void])
    assert found is not None
    assert round(found.cpu_share, 6) == 0.001
    assert typical([]) is None


def test_the_table_has_a_row_for_each_server_and_number_of_calls() -> None:
    windows = [window(), window(late=10, void=True), window(calls=20), window("theirs", goodput=1.0)]
    assert costs(windows).splitlines() == [
        "| server | asked | calls | CPU a call | memory a call | frames | late | turns | sound windows |",
        "|---|---|---|---|---|---|---|---|---|",
        "| ours | talk | 10 | 2.00% | 1.00 MiB | 1000 | 0.498% | - | 1 of 2 |",
        "| ours | talk | 20 | 1.00% | 1.00 MiB | 1000 | 0.000% | - | 1 of 1 |",
        "| theirs | talk | 10 | 2.00% | 1.00 MiB | 1000 | 0.000% | 40 | 1 of 1 |",
    ]


def test_what_was_used_while_calls_were_gone_is_no_cost_of_calls() -> None:
    gone = window(cpu_share=0.05, completed=9)
    assert typical([gone]) is None
    assert typical([gone, window()]) == typical([window()])
    assert costs([gone]).splitlines()[-1] == "| ours | talk | 10 | - | - | - | 0.000% | - | 0 of 1 |"
    assert ratios([gone, window("theirs")], "ours", {}) == ""


def test_aims_are_met_or_missed_by_what_was_asked() -> None:
    windows = [
        window("ours", cpu_share=0.15, goodput=1.0),
        window("theirs", cpu_share=0.25, goodput=1.0, turns=20, frames=500),
    ]
    assert ratios(windows, "ours", {("theirs", "talk"): 0.5}) == (
        "- talk, 10 calls, ours to theirs: CPU a call 0.50 (aim 0.50: met), memory a call 1.00, frames 2.00, turns 2.00"
    )
    assert "aim 0.40: MISSED" in ratios(windows, "ours", {("theirs", "talk"): 0.4})
    assert "aim" not in ratios(windows, "ours", {("theirs", "echo"): 0.4})


def test_there_is_nothing_to_compare_without_ours() -> None:
    assert ratios([window("theirs"), window("ours", calls=20)], "ours", {}) == ""
