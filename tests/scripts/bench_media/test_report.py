"""What the figures are made into."""

from scripts.bench_media.lateness import Lateness
from scripts.bench_media.measure import Measured, Window
from scripts.bench_media.report import aims_met, as_json, report

SERVERS = ("stock", "ours", "pipecat")


def window(
    server: str,
    load: str = "full",
    calls: int = 5,
    cpu_share: float = 0.25,
    *,
    late: int = 0,
    sent_late: int = 0,
    heard_share: float = 1.0,
) -> Window:
    return Window(
        server=server,
        load=load,
        calls=calls,
        cpu_share=cpu_share,
        callers_cpu_share=0.1,
        others_server_core=0.0,
        others_callers_core=None,
        frames=Lateness(1000, late, 0, 3.0),
        sent=1000,
        sent_late=sent_late,
        heard_share=heard_share,
        talk_share=1.0,
    )


def three(load: str, ours: float) -> list[Window]:
    return [window("stock", load, 5, 0.3), window("ours", load, 5, ours), window("pipecat", load, 5, 0.4)]


def test_the_aims_are_met_or_missed_by_load() -> None:
    text = report(Measured((*three("full", 0.18), *three("half", 0.18)), {}), SERVERS)
    assert "talks all the time, 5 calls: ours/stock 60%, aim 65%: met" in text
    assert "talks half the time, 5 calls: ours/stock 60%, aim 50%: MISSED" in text
    assert "| talks all the time | 5 | 6.00 % | 3.60 % | 8.00 % | 60 % | 45 % |" in text


def test_one_miss_misses() -> None:
    assert aims_met(Measured((*three("full", 0.18), *three("half", 0.14)), {})) is True
    assert aims_met(Measured((*three("full", 0.21), *three("half", 0.14)), {})) is False
    assert aims_met(Measured((window("stock"),), {})) is None


def test_the_median_leaves_void_windows_out() -> None:
    windows = [window("ours", cpu_share=share) for share in (0.2, 0.3, 0.9)]
    assert Measured(tuple(windows), {}).share_per_call("ours", "full", 5) == 0.3 / 5
    spoilt = window("ours", cpu_share=0.001, sent_late=2)
    assert Measured((*windows, spoilt, spoilt, spoilt), {}).share_per_call("ours", "full", 5) == 0.3 / 5


def test_if_every_window_is_void_the_report_says_so() -> None:
    measured = Measured((window("ours", cpu_share=0.5, sent_late=2),), {})
    assert measured.share_per_call("ours", "full", 5) == 0.1
    assert "1 of 1 windows VOID" in report(measured, ("ours",))


def test_what_a_starved_server_cost_is_no_figure() -> None:
    measured = Measured(
        (window("ours", cpu_share=0.01, heard_share=0.5),), {"ours": (window("ours", heard_share=0.5),)}
    )
    assert measured.share_per_call("ours", "full", 5) is None
    assert measured.calls_per_core("ours") == 0
    assert "the server having heard or said too little" in report(measured, ("ours",))


def test_a_core_holds_the_last_level_without_late_frames() -> None:
    climb = (window("ours", calls=10), window("ours", calls=15, late=1), window("ours", calls=20, late=2))
    measured = Measured((), {"ours": climb, "stock": (window("stock", calls=10, late=2),), "pipecat": climb[:1]})
    assert measured.calls_per_core("ours") == 15
    assert measured.calls_per_core("stock") == 0
    text = report(measured, SERVERS)
    assert "- ours: 15 (20: 0.20% late, worst 3 ms, 25% of the core used)" in text
    assert "- pipecat: 10, as far as the climb went" in text


def test_late_callers_void_a_failure_but_not_a_success() -> None:
    climb = (window("ours", calls=10, sent_late=2), window("ours", calls=15, late=2, sent_late=2))
    measured = Measured((), {"ours": climb})
    assert measured.calls_per_core("ours") == 10
    assert "25% of the core used; VOID, the callers were late themselves)" in report(measured, ("ours",))


def test_json_has_figures_and_windows() -> None:
    saved = as_json(Measured(tuple(three("full", 0.18)), {"ours": (window("ours", calls=10),)}), SERVERS, "a machine")
    assert saved["share_per_call"]["stock"]["full"]["5"] == 0.06
    assert saved["ratios"]["stock"]["half"]["5"] is None
    assert saved["calls_per_core"] == {"stock": None, "ours": 10, "pipecat": None}
    assert len(saved["windows"]) == 3
    assert saved["climbs"]["ours"][0]["frames"]["frames"] == 1000
