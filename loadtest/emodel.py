"""Estimated quality of a call by the E-model (ITU-T G.107, 06/2015), reduced to what a load test knows.

``R = 93.2 - Idd - Ie,eff``: all parameters but delay, codec and loss are at G.107's defaults (table 2), whose sum is
93.2. Nobody was asked, so a value says how two calls compare, not how people like them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_R = 93.2


@dataclass(frozen=True, slots=True)
class CodecQuality:
    """``ie`` is the equipment impairment without loss, ``concealed_bpl`` the robustness against packets that the
    receiver conceals (higher is better)."""

    ie: float
    concealed_bpl: float


G711 = CodecQuality(0.0, 25.1)
"""G.113 (11/2007) table I.4, G.711 with Appendix I concealment."""

LINEAR = CodecQuality(0.0, 25.1)
"""Uncompressed sound, over TCP: loses no packets, so the second number does not matter."""

OPUS = CodecQuality(0.0, 25.1)
"""Neither G.107 nor G.113 has values for Opus at narrowband's scale: taken to be as good as G.711. Approximate."""

SILENT_BPL = 4.3
"""G.113 table I.4, G.711 without concealment: packets in whose place there is silence."""


def r_factor(codec: CodecQuality, *, delay_ms: float, concealed: float = 0.0, silent: float = 0.0) -> float:
    """``delay_ms`` is mouth to ear, one way. ``concealed`` and ``silent`` are shares (0 to 1) of packets that were lost
    and concealed, and of those that were replaced by silence; both at random (BurstR 1)."""
    return DEFAULT_R - delay_impairment(delay_ms) - _equipment(codec, concealed, silent)


def delay_impairment(delay_ms: float) -> float:
    """Idd of G.107 (equations 7-27 and 7-28): nothing up to 100 ms. Echo is taken to be cancelled."""
    if delay_ms <= 100.0:
        return 0.0
    x = math.log2(delay_ms / 100.0)
    return 25.0 * (math.pow(1 + x**6, 1 / 6) - 3 * math.pow(1 + (x / 3) ** 6, 1 / 6) + 2)


def mos(r: float) -> float:
    """Conversational quality 1.0 to 4.5 (G.107 annex B)."""
    if r <= 0:
        return 1.0
    if r >= 100:
        return 4.5
    return max(1.0, 1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6)


def _equipment(codec: CodecQuality, concealed: float, silent: float) -> float:
    """Ie,eff (G.107 equation 7-29), its loss term once for either kind of loss."""
    terms = ((concealed * 100, codec.concealed_bpl), (silent * 100, SILENT_BPL))
    loss = sum((95.0 - codec.ie) * share / (share + bpl) for share, bpl in terms)
    return min(95.0, codec.ie + loss)
