"""One browser's call from its offer to its end: the task that owns the peer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from engines.api import Pcm16
from gateway.call import Call
from gateway.call_setup import open_call, open_protocol, perform
from gateway.first_session import Beginning
from gateway.realtime.client_events import parse_event
from gateway.realtime.protocol import RealtimeProtocol
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.webrtc.leg import Peer, WebRtcLeg
from gateway.transports.webrtc.peer import LostCause
from streaming.config import SessionConfig

_log = structlog.get_logger(__name__)

ANSWER_S = 5.0
"""For the answer: addresses are gathered, a STUN server is asked."""
SETUP_S = 15.0
"""A browser whose media is not there after this long does not come any more: ``media_not_connected``."""
CHANNEL_S = 2.0
"""A greeting waits this long for the data channel."""
CLOSE_S = 2.0
"""After the end: how long the last events may take to leave."""
FLUSH_POLL_S = 0.02

OFF_LOOP_CHARS = 64 * 1024
"""Longer messages are parsed in a worker thread."""
MAX_INBOX_CHARS = 4 * 1024 * 1024
MAX_INBOX_MESSAGES = 4_096
"""What a client may have sent that was not looked at yet; beyond, it is hung up (``peer_flooding``)."""

_CAUSES = {"peer_closed": "caller_hung_up", "never_connected": "media_not_connected"}
"""What a call's end is called, where the peer has another word for it."""

MakePeer = Callable[["PeerListener"], Peer]


class AnswerTimeout(Exception):  # noqa: N818 (an answer: the client may try again)
    """Addresses could not be gathered in time."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A call that was asked for, and has its place."""

    sdp: str
    beginning: Beginning
    config: SessionConfig


async def answer_call(
    gateway: Gateway, admission: Admission, offered: Offered, make_peer: MakePeer, answer: asyncio.Future[str]
) -> None:
    """Take the offer, give the answer (or what forbids it) to ``answer``, and run the call to its end."""
    with admission:
        structlog.contextvars.bind_contextvars(call=admission.call_id)
        listener = PeerListener(gateway, admission)
        peer = make_peer(listener)
        try:
            call = await _set_up(gateway, admission, offered, peer, listener, answer)
            if call is not None:
                await _run(call, peer, listener)
        finally:
            await peer.close()
            listener.detach()
            if listener.media.is_set():
                _log.info("media of the call", **dataclasses.asdict(peer.stats()))


async def _set_up(
    gateway: Gateway,
    admission: Admission,
    offered: Offered,
    peer: Peer,
    listener: PeerListener,
    answer: asyncio.Future[str],
) -> Call | None:
    agent = offered.beginning.agent
    try:
        protocol = open_protocol(
            gateway,
            admission.call_id,
            config=offered.config,
            agent_name=agent,
            model=offered.beginning.model,
            media=True,
        )
        offered.beginning.apply_to(protocol)
        try:
            async with asyncio.timeout(ANSWER_S):
                sdp = await peer.answer(offered.sdp)
        except TimeoutError:
            raise AnswerTimeout from None
        protocol.open()
        leg = WebRtcLeg(protocol, peer, gateway.metrics.count)
        leg.flush()  # first of all, for whoever comes in while the server says goodbye
        call = open_call(gateway, admission, transport="webrtc", agent_name=agent, config=protocol.config, leg=leg)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the answer to the request)
        if not answer.done():
            answer.set_exception(error)
        return None
    leg.outbox.attach(call)
    listener.attach(call, leg, protocol)
    gateway.switchboard.register(admission, call)
    if not answer.done():
        answer.set_result(sdp)
    return call


async def _run(call: Call, peer: Peer, listener: PeerListener) -> None:
    leg = listener.leg
    try:
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(_receive(call, listener), name="receive")
            talking = tasks.create_task(_talk(call, listener), name="talk")
            answering = tasks.create_task(_answer(call, listener), name="answer")
            await call.finished.wait()
            listener.over()
            receiving.cancel()
            answering.cancel()
            leg.outbox.close()
            if not leg.outbox.lost:
                await asyncio.sleep(leg.unheard_s)
                if listener.channel.is_set():
                    await asyncio.wait({talking}, timeout=CLOSE_S)
                    await _flushed(peer)
            talking.cancel()
    except asyncio.CancelledError:
        call.hang_up("server_stop")
        raise
    finally:
        if not call.finished.is_set():
            call.hang_up("internal_error")  # a task of the call raised


async def _answer(call: Call, listener: PeerListener) -> None:
    """The call is answered once its media is there, and whoever is greeted can be told so."""
    try:
        async with asyncio.timeout(SETUP_S):
            await listener.media.wait()
    except TimeoutError:
        call.hang_up("media_not_connected")
        return
    try:
        async with asyncio.timeout(CHANNEL_S):
            await listener.channel.wait()
    except TimeoutError:
        listener.leg.go_deaf()
    call.answered()


async def _talk(call: Call, listener: PeerListener) -> None:
    await listener.channel.wait()
    listener.leg.hear_again()
    await listener.leg.outbox.send_by(listener.leg.send, call, gone=())


async def _receive(call: Call, listener: PeerListener) -> None:
    """Client events, one after another, while the client reads what it gets for them."""
    while not call.finished.is_set():
        text = await listener.next_message()
        if text is None:
            listener.protocol.receive_binary()
        else:
            parsed = parse_event(text) if len(text) <= OFF_LOOP_CHARS else await asyncio.to_thread(parse_event, text)
            for inbound in listener.protocol.apply(parsed):
                listener.leg.flush()
                await perform(inbound, call)
                await asyncio.sleep(0)  # 32 keys may be in one event, each a turn of its own
        listener.leg.flush()
        await listener.leg.outbox.room()


async def _flushed(peer: Peer) -> None:
    """What the channel took has left; it tells of no such moment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + CLOSE_S
    while peer.buffered_bytes and loop.time() < until:  # noqa: ASYNC110 (the peer has no such event)
        await asyncio.sleep(FLUSH_POLL_S)


class PeerListener:
    """What the peer tells of goes to the call, if there is one yet. (``PeerEvents`` of the media peer.)"""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._metrics = gateway.metrics
        self._admission = admission
        self._call: Call | None = None
        self._inbox: deque[str | None] = deque()
        self._inbox_chars = 0
        self._news = asyncio.Event()
        self.media = asyncio.Event()
        self.channel = asyncio.Event()
        self.leg: WebRtcLeg
        self.protocol: RealtimeProtocol

    def attach(self, call: Call, leg: WebRtcLeg, protocol: RealtimeProtocol) -> None:
        self._call, self.leg, self.protocol = call, leg, protocol

    def detach(self) -> None:
        """Nothing more is to be told, and nothing kept."""
        self._call = None
        self._inbox.clear()

    def over(self) -> None:
        """The call waits for its media no more: its last events may still take a moment."""
        self._admission.connected()

    async def next_message(self) -> str | None:
        """None for a binary one."""
        while not self._inbox:
            self._news.clear()
            await self._news.wait()
        text = self._inbox.popleft()
        self._inbox_chars -= len(text or "")
        return text

    # --- the peer's side: none of these block, none raise ---------------------------------------------------------

    def connected(self) -> None:
        self._admission.connected()
        self.media.set()

    def channel_open(self) -> None:
        self.channel.set()

    def audio(self, pcm: Pcm16) -> None:
        if self._call is not None and not self._call.finished.is_set():
            self._call.hear_now(pcm)

    def message(self, text: str) -> None:
        self._take(text)

    def binary(self) -> None:
        self._take(None)

    def writable(self) -> None:
        if self._call is not None:
            self.leg.writable()

    def suspect(self, silent: bool) -> None:
        if silent:
            self._metrics.count("media_suspect")
        _log.info("no media comes" if silent else "media comes again")

    def lost(self, cause: LostCause) -> None:
        if self._call is None:
            return
        self.leg.outbox.give_up()
        self._call.hang_up(_CAUSES.get(cause, cause))

    def _take(self, text: str | None) -> None:
        if self._call is None or self._call.finished.is_set():
            return
        self._inbox.append(text)
        self._inbox_chars += len(text or "")
        self._news.set()
        if self._inbox_chars > MAX_INBOX_CHARS or len(self._inbox) > MAX_INBOX_MESSAGES:
            self._call.hang_up("peer_flooding")
