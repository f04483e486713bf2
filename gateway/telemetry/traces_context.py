"""Which trace a call belongs to: one of its own, or the one that whoever asked for the call is in (W3C Trace Context).

Nothing of OpenTelemetry is imported here: this is there whether calls are traced or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span, elsewhere, that a call was asked for in. Ids are never zero."""

    trace_id: int
    span_id: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class CallTrace:
    """What a call is in the trace: ``span_id`` is its own span. ``sampled`` False: nobody wants it, unless it ends by a
    fault, and even then not if there is a ``parent`` (whoever asked for the call has decided)."""

    trace_id: int
    span_id: int
    sampled: bool
    parent: TraceParent | None = None

    @property
    def hex_id(self) -> str:
        """The trace id, as people search for it."""
        return f"{self.trace_id:032x}"


asked_in: ContextVar[TraceParent | None] = ContextVar("asked_in", default=None)
"""The trace of the request that is being served; tasks that it starts have it, too. So has what is kept beyond it, such
as a connection: it is for the call that was asked for, and no other."""


def parse_traceparent(values: Sequence[str]) -> TraceParent | None:
    """Of all ``traceparent`` headers of a request: one that is well formed, else None (W3C Trace Context, section 3.2;
    of versions to come the part that is known)."""
    if len(values) != 1:
        return None
    match = _FORM.fullmatch(values[0].strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        return None
    parent = TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return parent if parent.trace_id and parent.span_id else None


def begin_trace(parent: TraceParent | None, ratio: float, random_bits: Callable[[int], int]) -> CallTrace:
    """A call begins: in the trace of what it was asked in, else in a new one, of which ``ratio`` are sampled, by the
    lower half of the id (as OpenTelemetry's ``TraceIdRatioBased`` does, so that services agree)."""
    span_id = _nonzero(random_bits, 64)
    if parent is not None:
        return CallTrace(parent.trace_id, span_id, parent.sampled, parent)
    trace_id = _nonzero(random_bits, 128)
    return CallTrace(trace_id, span_id, (trace_id & (1 << 64) - 1) < round(ratio * (1 << 64)))


def _nonzero(random_bits: Callable[[int], int], bits: int) -> int:
    return random_bits(bits) or 1
