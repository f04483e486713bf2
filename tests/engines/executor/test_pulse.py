"""The heartbeat in virtual time."""

from __future__ import annotations

from engines.executor.pulse import LEAST_OVERRUN_S, OVERRUN, Pulse, QuantaOfKind


def test_a_quantum_at_four_times_its_bound_is_trouble_until_it_ends() -> None:
    pulse = Pulse(100.0, stalled_after_s=30.0)
    pulse.begin("decode", 0.5, 100.0)
    assert pulse.trouble(100.0 + OVERRUN * 0.5 - 0.01) == ""
    assert "decode" in pulse.trouble(100.0 + OVERRUN * 0.5)
    assert pulse.overruns == 0
    assert pulse.end(103.0) == 3.0
    assert pulse.trouble(103.0) == ""
    assert pulse.overruns == 1


def test_a_bound_of_nothing_allows_a_hiccup() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.begin("decode", 0.001, 0.0)
    assert pulse.trouble(LEAST_OVERRUN_S - 0.01) == ""
    pulse.end(LEAST_OVERRUN_S - 0.01)
    assert pulse.overruns == 0


def test_what_is_unknown_is_stalled_only_after_long() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.begin("run", None, 0.0)
    assert pulse.trouble(29.9) == ""
    assert pulse.trouble(30.0) != ""


def test_a_thread_not_heard_of_is_trouble() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.beat(10.0)
    assert pulse.trouble(39.9) == ""
    assert "not been heard of" in pulse.trouble(40.0)


def test_a_wait_for_work_and_what_follows_it_are_not_one_silence() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.beat(1.0)
    pulse.awake(1.5)
    assert pulse.last_beat == 1.5
    pulse.begin("encode", 1.0, 1.75)
    assert pulse.last_beat == 1.75


def test_quanta_are_counted_by_kind() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    for begun, ended, name in ((0.0, 1.0, "decode"), (1.0, 4.0, "decode"), (4.0, 4.5, "prefill")):
        pulse.begin(name, 10.0, begun)
        pulse.end(ended)
    assert pulse.quanta() == {"decode": QuantaOfKind(2, 4.0, 3.0), "prefill": QuantaOfKind(1, 0.5, 0.5)}
    assert pulse.last_beat == 4.5


def test_work_between_quanta_is_measured_and_a_wait_is_not() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.beat(0.0)
    pulse.awake(5.0)  # five seconds without work
    pulse.begin("decode", 1.0, 5.25)
    pulse.end(6.25)
    pulse.beat(6.5)
    pulse.awake(7.0)
    assert pulse.between == QuantaOfKind(2, 0.5, 0.25)
    assert pulse.overruns == 0


def test_a_long_stretch_between_quanta_is_an_overrun() -> None:
    pulse = Pulse(0.0, stalled_after_s=30.0)
    pulse.awake(0.0)
    pulse.begin("decode", 1.0, 3.8)
    assert pulse.between.longest_s == 3.8
    assert pulse.overruns == 1
