from __future__ import annotations

import random

import pytest

from gateway.telemetry.traces_context import TraceParent, begin_trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", PARENT),
        (f"00-{TRACE}-{SPAN}-00", TraceParent(PARENT.trace_id, PARENT.span_id, False)),
        (f"00-{TRACE}-{SPAN}-fe", TraceParent(PARENT.trace_id, PARENT.span_id, False)),
        (f" 00-{TRACE}-{SPAN}-03 ", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", PARENT),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN[1:]}-01", None),
        ("", None),
    ],
)
def test_a_traceparent(header: str, parent: TraceParent | None) -> None:
    assert parse_traceparent([header]) == parent


def test_one_header_is_taken_and_no_more() -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent([]) is None
    assert parse_traceparent([header, header]) is None


def test_a_call_of_nobodys_trace_begins_its_own_and_so_many_are_sampled() -> None:
    dice = random.Random(5)
    traces = [begin_trace(None, 0.25, dice.getrandbits) for _ in range(4_000)]
    assert len({trace.trace_id for trace in traces}) == 4_000
    assert all(trace.trace_id and trace.span_id and trace.parent is None for trace in traces)
    assert 900 < sum(trace.sampled for trace in traces) < 1_100
    assert all(begin_trace(None, 1.0, dice.getrandbits).sampled for _ in range(100))
    assert not any(begin_trace(None, 0.0, dice.getrandbits).sampled for _ in range(100))
    assert not begin_trace(None, 0.0, lambda _: 0).sampled, "an id is never zero"


@pytest.mark.parametrize("sampled", [True, False])
def test_a_call_that_was_asked_for_in_a_trace_is_part_of_it_and_sampled_as_it_is(sampled: bool) -> None:
    parent = TraceParent(PARENT.trace_id, PARENT.span_id, sampled)
    for ratio in (0.0, 1.0):
        trace = begin_trace(parent, ratio, random.Random(5).getrandbits)
        assert (trace.trace_id, trace.sampled, trace.parent) == (PARENT.trace_id, sampled, parent)
        assert trace.span_id != PARENT.span_id
        assert trace.hex_id == TRACE
