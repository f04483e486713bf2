"""This gateway's media path: one ``MediaPeer`` a call, fed by the clock while the agent talks, as a call feeds it."""

from __future__ import annotations

import asyncio

from gateway.transports.webrtc.candidates import MediaPolicy
from gateway.transports.webrtc.peer import LostCause, MediaPeer
from scripts.bench_media.server import GREETINGS, Conversation
from scripts.bench_media.talk import FRAME_MS, Pcm16


class Call:
    """The events of one peer, and the task that talks."""

    def __init__(self, conversation: Conversation) -> None:
        self._peer = MediaPeer(MediaPolicy(allow_loopback=True), self)
        self._conversation = conversation
        self._talk: asyncio.Task[None] | None = None

    async def answer(self, offer_sdp: str) -> str:
        return await self._peer.answer(offer_sdp)

    async def close(self) -> None:
        if self._talk is not None:
            self._talk.cancel()
        await self._peer.close()

    def connected(self) -> None:
        self._talk = asyncio.create_task(self._speak())

    def audio(self, pcm: Pcm16) -> None:
        self._conversation.hear(len(pcm))

    def lost(self, cause: LostCause) -> None:
        if self._talk is not None:
            self._talk.cancel()

    def channel_open(self) -> None:
        for text in GREETINGS:
            self._peer.send(text)

    def message(self, text: str) -> None: ...

    def binary(self) -> None: ...

    def writable(self) -> None: ...

    def suspect(self, silent: bool) -> None: ...

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        frames = 0
        while True:
            if self._conversation.talking:
                self._peer.play(self._conversation.speech.frame(frames))
            frames += 1
            await asyncio.sleep(start_s + frames * FRAME_MS / 1000 - loop.time())
