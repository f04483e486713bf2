"""Reports about both streams, and what the far end reports (RFC 3550, section 6)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from aiortc.rtp import (
    RtcpByePacket,
    RtcpPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpSdesPacket,
    RtcpSenderInfo,
    RtcpSourceInfo,
    RtcpSrPacket,
)

from gateway.transports.rtp.receiver import RtpReceiver

FIRST_REPORT_S = 0.5
REPORT_S = 2.5
"""Half of what plain RTP would send, for a round-trip time that is worth showing; feedback profiles may."""
_NTP_EPOCH_S = 2_208_988_800
"""1900 to 1970."""
_REMEMBERED = 8
_CNAME = 1


class Sending(Protocol):
    """The stream of ours that is reported on."""

    @property
    def ssrc(self) -> int: ...

    @property
    def packets(self) -> int: ...

    @property
    def octets(self) -> int: ...

    def timestamp_at(self, now_s: float) -> int:
        """The RTP timestamp of a moment."""


class Reports:
    """``send`` takes RTCP that is not encrypted yet, and must not raise. Times are of the call's monotonic clock."""

    def __init__(
        self,
        sender: Sending,
        receiver: RtpReceiver,
        cname: str,
        send: Callable[[bytes], None],
        clock: Callable[[], float],
    ) -> None:
        self._sender = sender
        self._receiver = receiver
        self._cname = cname.encode()
        self._send = send
        self._ntp_offset_s = time.time() - clock() + _NTP_EPOCH_S
        self._sent: OrderedDict[int, float] = OrderedDict()
        """The middle of the NTP times of the last sender reports, and when they were sent."""
        self._heard: tuple[int, float] | None = None
        self._packets_reported = -1
        self.rtt_ms: float | None = None
        self.far_lost = 0
        """Packets of ours that the far end has missed so far."""
        self.goodbye = False
        """The far end said that its stream ends here."""

    def send(self, now_s: float) -> None:
        """One compound packet: a sender report if something was sent since the last, else a receiver report."""
        last, delay = 0, 0
        if self._heard is not None:
            last, heard_s = self._heard
            delay = min(int((now_s - heard_s) * 65_536), 0xFFFFFFFF)
        block = self._receiver.report(last, delay)
        blocks = [block] if block is not None else []
        report: RtcpSrPacket | RtcpRrPacket
        if self._sender.packets != self._packets_reported:
            self._packets_reported = self._sender.packets
            ntp = int((now_s + self._ntp_offset_s) * (1 << 32)) & 0xFFFFFFFFFFFFFFFF
            self._remember(ntp >> 16 & 0xFFFFFFFF, now_s)
            info = RtcpSenderInfo(ntp, self._sender.timestamp_at(now_s), self._sender.packets, self._sender.octets)
            report = RtcpSrPacket(ssrc=self._sender.ssrc, sender_info=info, reports=blocks)
        else:
            report = RtcpRrPacket(ssrc=self._sender.ssrc, reports=blocks)
        self._send(bytes(report) + self._description())

    def send_goodbye(self) -> None:
        report = RtcpRrPacket(ssrc=self._sender.ssrc)
        self._send(bytes(report) + self._description() + bytes(RtcpByePacket(sources=[self._sender.ssrc])))

    def hear_of(self, receiver: RtpReceiver) -> None:
        """The stream that comes in is another one now."""
        self._receiver = receiver

    def receive(self, data: bytes, now_s: float) -> bool:
        """A compound packet, decrypted. False: it is malformed, and passed over."""
        try:
            packets = RtcpPacket.parse(data)
        except (ValueError, IndexError):
            return False
        for packet in packets:
            if isinstance(packet, RtcpSrPacket):
                self._heard = (packet.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF, now_s)
                self.goodbye = False
            if isinstance(packet, RtcpSrPacket | RtcpRrPacket):
                for block in packet.reports:
                    self._read(block, now_s)
            elif isinstance(packet, RtcpByePacket):
                self.goodbye = self._receiver.ssrc in packet.sources or self.goodbye
        return True

    def _read(self, block: RtcpReceiverInfo, now_s: float) -> None:
        if block.ssrc != self._sender.ssrc:
            return
        self.far_lost = block.packets_lost
        sent_s = self._sent.get(block.lsr)
        if sent_s is not None:
            self.rtt_ms = max(0.0, (now_s - sent_s - block.dlsr / 65_536) * 1000.0)

    def _remember(self, middle: int, now_s: float) -> None:
        self._sent[middle] = now_s
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)

    def _description(self) -> bytes:
        source = RtcpSourceInfo(ssrc=self._sender.ssrc, items=[(_CNAME, self._cname)])
        return bytes(RtcpSdesPacket(chunks=[source]))
