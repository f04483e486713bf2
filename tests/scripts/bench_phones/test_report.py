from __future__ import annotations

from scripts.bench_media.lateness import Lateness
from scripts.bench_media.windows import progress
from scripts.bench_phones.measure import Case, Measured, Window
from scripts.bench_phones.report import aim_met, as_json, report

ECHO = Case("sip", "echo", vad=True)
CALL = Case("twilio", "call", vad=False)


def window(
    case: Case = ECHO,
    calls: int = 50,
    cpu_share: float = 0.25,
    *,
    late: int = 0,
    sent_late: int = 0,
    heard_share: float = 1.0,
    judged_share: float = 1.0,
) -> Window:
    return Window(
        case=case,
        calls=calls,
        cpu_share=cpu_share,
        callers_cpu_share=0.1,
        others_server_core=0.0,
        others_callers_core=0.5,
        frames=Lateness(1_000, late, 0, 3.0),
        said_share=1.0,
        heard_share=heard_share,
        judged_share=judged_share,
        sent=1_000,
        sent_late=sent_late,
    )


def test_the_highest_level_in_time_is_held_and_judged_by_its_aim() -> None:
    climb = (window(calls=90), window(calls=120, late=1), window(calls=150, cpu_share=0.95, late=2))
    measured = Measured((), {ECHO: climb, CALL: (window(CALL, 300, late=900),)})
    assert measured.held(ECHO) == 120
    assert aim_met(measured, ECHO) is True
    assert aim_met(Measured((), {ECHO: climb[:1]}), ECHO) is False
    assert measured.held(CALL) == 0
    assert aim_met(measured, CALL) is None
    assert Measured((), {}).held(ECHO) is None
    text = report(measured, (ECHO, CALL))
    assert "| sip | echo | on | 120 (at 150: 0.20% late, 95% of the core) | 120: met |" in text
    assert "| twilio | call | off | 0 (at 300: 90.00% late, 25% of the core) | - |" in text


def test_a_climb_that_found_no_end_or_no_beginning_says_so() -> None:
    assert "| 90, as far as the climb went |" in report(Measured((), {ECHO: (window(calls=90),)}), (ECHO,))
    assert "| none could be set up |" in report(Measured((), {ECHO: ()}), (ECHO,))
    assert "| - | 120 |" in report(Measured((), {}), (ECHO,))


def test_a_gateway_that_hears_or_judges_too_little_holds_nothing() -> None:
    assert not window(heard_share=0.9).in_time
    assert not window(judged_share=0.9).in_time
    assert window(heard_share=0.96).in_time
    assert "; starved)" in report(Measured((), {ECHO: (window(judged_share=0.1),)}), (ECHO,))


def test_the_median_leaves_void_windows_out() -> None:
    windows = [window(cpu_share=share) for share in (0.2, 0.3, 0.9)]
    starved, spoilt = window(cpu_share=0.001, heard_share=0.1), window(cpu_share=0.001, sent_late=2)
    assert Measured((*windows, starved, starved, spoilt, spoilt), {}).share_per_call(ECHO, 50) == 0.3 / 50
    assert Measured((spoilt, starved), {}).share_per_call(ECHO, 50) == 0.001 / 50
    assert Measured((starved,), {}).share_per_call(ECHO, 50) is None
    text = report(Measured((*windows, starved, spoilt), {}), (ECHO,))
    assert "| sip | echo | on | 0.60 % | - | 120 |" in text
    assert "1 of 5 windows VOID, the callers" in text
    assert "1 of 5 windows VOID, the gateway" in text


def test_what_was_read_is_saved_and_told() -> None:
    measured = Measured((window(),), {ECHO: (window(calls=120),)})
    saved = as_json(measured, (ECHO,), "a machine")
    assert (saved["cases"][0]["held"], saved["cases"][0]["aim_met"]) == (120, True)
    assert saved["windows"][0]["share_per_call"] == 0.005
    assert "VOID" not in progress(window())
    assert "VOID: callers late" in progress(window(sent_late=5))
    assert "VOID: said 100%, heard 50%, judged 100%" in progress(window(heard_share=0.5))
