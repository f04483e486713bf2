"""RTP packets, read and written (RFC 3550, section 5.1)."""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import NamedTuple

_HEADER = Struct("!BBHLL")
_HEADER_BYTES = 12


class RtpPacket(NamedTuple):
    payload_type: int
    marker: bool
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes


def parse_rtp(data: bytes) -> RtpPacket | None:
    """None if it is no RTP packet. Padding, extensions and contributing sources are left out."""
    if len(data) < _HEADER_BYTES or data[0] >> 6 != 2:
        return None
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
    start, end = _HEADER_BYTES, len(data)
    if first & 0x3F:
        start += 4 * (first & 0x0F)
        if first & 0x10:
            if len(data) < start + 4:
                return None
            start += 4 + 4 * int(unpack_from("!H", data, start + 2)[0])
        if first & 0x20:
            end -= data[-1]
        if start > end:
            return None
    return RtpPacket(second & 0x7F, second >= 0x80, sequence, timestamp, ssrc, data[start:end])


def write_rtp(payload_type: int, marker: bool, sequence: int, timestamp: int, ssrc: int, payload: bytes) -> bytes:
    """Numbers within their 7, 16, 32 and 32 bits."""
    return _HEADER.pack(0x80, payload_type | marker << 7, sequence, timestamp, ssrc) + payload


def is_rtcp(data: bytes) -> bool:
    """Which of the two it is, where both come to one port (RFC 5761, section 4)."""
    return len(data) >= 2 and 192 <= data[1] <= 223
