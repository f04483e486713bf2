"""The host's side over a real socket, in this process: what it answers, and what it does when nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np

from engines.host import protocol as wire
from engines.host.channel import Channel
from engines.host.server import MAX_JOBS, HostServer, pieces
from engines.opening import InProcess
from engines.registry import BackendSpec
from streaming.jobs import Message, SynthesisChunk, Tool, ToolCall, ToolCalled
from tests.engines.host.rig import final, generate, spec, synthesize, transcription, until


class Gateway:
    """The other end: sends, and keeps what comes."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._ends = (ours, theirs)
        self.server = HostServer(InProcess(1), lambda: wire.Vitals(7, overload=1))
        self.got: list[Any] = []
        self.lost: list[Exception | None] = []
        self.channel = Channel(
            wire.FROM_HOST, on_messages=self.got.extend, on_lost=self.lost.append, limit_bytes=1 << 30
        )
        self.theirs = Channel(
            wire.TO_HOST,
            on_messages=self.server.on_messages,
            on_lost=self.server.on_lost,
            limit_bytes=limit_bytes,
        )
        self.server.attach(self.theirs)

    async def open(self) -> None:
        await self.channel.connect(self._ends[0])
        await self.theirs.connect(self._ends[1])

    async def close(self) -> None:
        await self.server.close()
        self.channel.abort()
        self.theirs.abort()
        await self.channel.closed.wait()
        await self.theirs.closed.wait()

    def send(self, *messages: wire.ToHost) -> None:
        for message in messages:
            assert self.channel.send(message)

    async def load(self, backend: BackendSpec, number: int = 1) -> None:
        kind: Any = backend.kind
        packed = wire.Backend(backend.name, kind, backend.factory, backend.extra, None, dict(backend.options))
        self.send(wire.Load(number, packed, ()))
        await until(lambda: any(loaded.engine == number for loaded in self.of(wire.Loaded)))

    async def until(self, kind: type[Any], count: int = 1) -> Any:
        await until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[-1]

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.got if isinstance(message, kind)]

    async def pong(self) -> wire.Pong:
        """All that was sent before has been served."""
        asked = len(self.of(wire.Pong))
        self.send(wire.Ping(asked))
        pong: wire.Pong = await self.until(wire.Pong, asked + 1)
        return pong

    def read(self, on: bool) -> None:
        transport: Any = self.channel._transport
        (transport.resume_reading if on else transport.pause_reading)()


@contextlib.asynccontextmanager
async def gateway(**kwargs: Any) -> AsyncIterator[Gateway]:
    here = Gateway(**kwargs)
    await here.open()
    try:
        yield here
    finally:
        await here.close()


async def test_an_engine_that_is_not_loaded_fails_every_job() -> None:
    async with gateway() as here:
        here.send(
            wire.StartGeneration(9, 1, generate()),
            wire.StartSynthesis(9, 2, synthesize()),
            wire.OpenStream(9, 3, transcription()),
            wire.Feed(3, bytes(100)),
            wire.FinalizeStream(3, final(2)),
        )
        await here.pong()
        here.send(
            wire.CloseStream(3),
            wire.CancelEpoch(9, "call", 1),
            wire.ForgetCall(9, "call"),
            wire.Prioritize(9, "call", 1),
            wire.Postpone(9, "call", 1, 0.0),
            wire.Unload(9),
        )
        await here.until(wire.Unloaded)
        assert here.of(wire.GenerateFailed)[0].result.code == "not_loaded"
        assert here.of(wire.SpeechFailed)[0].result.code == "not_loaded"
        assert [(m.result.code, m.result.revision) for m in here.of(wire.FinalFailed)] == [
            ("not_loaded", 0),
            ("engine_raised", 2),
        ]


async def test_an_engine_that_raises_fails_its_job_and_no_other() -> None:
    async with gateway() as here:
        await here.load(spec("llm", factory="tests.engines.host.engines:Raising"))
        await here.load(spec("llm"), 2)
        here.send(wire.StartGeneration(1, 1, generate()), wire.StartGeneration(2, 2, generate()))
        await here.until(wire.Generated)
        assert (await here.until(wire.GenerateFailed)).result.code == "engine_raised"
        here.send(wire.CancelEpoch(1, "call", 1))
        await here.pong()
        assert not here.theirs.closed.is_set()


async def test_a_stream_that_raises_fails_what_was_asked_of_it() -> None:
    async with gateway() as here:
        await here.load(spec("stt", factory="tests.engines.host.engines:RaisingStt"))
        here.send(wire.OpenStream(1, 5, transcription()), wire.FinalizeStream(5, final(4)))
        failed = await here.until(wire.FinalFailed)
        assert (failed.job, failed.result.revision, failed.result.code) == (5, 4, "engine_raised")
        here.send(wire.Feed(5, bytes(10)), wire.CloseStream(5))
        await here.pong()


async def test_one_message_for_what_one_tick_brings() -> None:
    frames: list[int] = []
    async with gateway() as here:
        await here.load(spec("llm"))
        inner = here.channel._on_messages
        here.channel._on_messages = lambda messages: (frames.append(len(messages)), inner(messages))  # type: ignore[assignment,func-returns-value]
        for job in range(1, 33):
            here.send(wire.StartGeneration(1, job, generate(job, text="a")))
        await here.until(wire.Generated, 32)
    words = 3
    assert sum(frames) == 32 * (words + 1)
    assert len(frames) <= 3 * (words + 1)


async def test_a_cancelled_job_says_nothing_more_not_even_what_waited() -> None:
    async with gateway(limit_bytes=64 << 20) as here:
        await here.load(spec("tts"))
        here.read(False)
        for segment in range(8):
            here.send(wire.StartSynthesis(1, segment + 1, synthesize(1, segment, text="word " * 200)))
        await until(lambda: here.theirs.waiting_bytes > 600_000)
        here.send(wire.CancelEpoch(1, "call", 1))
        await until(lambda: here.theirs.waiting_bytes < 600_000)
        here.read(True)
        await here.pong()
        assert sum(chunk.result.last for chunk in here.of(wire.Chunk)) < 8
        assert not here.of(wire.SpeechFailed)


async def test_a_job_whose_results_nobody_takes_is_ended_and_the_rest_lives() -> None:
    async with gateway(limit_bytes=300_000) as here:
        await here.load(spec("tts"))
        await here.load(spec("stt", partial_every_ms=100, lines=["one two three"]), 2)
        here.read(False)
        here.send(wire.StartSynthesis(1, 1, synthesize(text="word " * 200)))
        await until(lambda: here.server._overflowed)
        loud = np.full(1600, 5_000, np.int16).tobytes()
        here.send(wire.OpenStream(2, 2, transcription()), *[wire.Feed(2, loud)] * 20, wire.FinalizeStream(2, final()))
        await asyncio.sleep(0.05)
        here.read(True)
        assert (await here.until(wire.SpeechFailed)).result.code == "overloaded"
        assert (await here.until(wire.Final)).result.text == "one two three"
        here.send(wire.StartSynthesis(1, 3, synthesize(2, text="fine")))
        await until(lambda: any(chunk.job == 3 and chunk.result.last for chunk in here.of(wire.Chunk)))
        pong = await here.pong()
        assert (pong.overflowed, pong.waiting, pong.vitals) == (1, 0, wire.Vitals(7, overload=1))


async def test_more_jobs_than_it_bears_are_refused() -> None:
    async with gateway() as here:
        await here.load(spec("llm", fault="stall_first", factory="engines.llm.scripted:ScriptedLlm"))
        here.send(*[wire.StartGeneration(1, job, generate(job)) for job in range(1, MAX_JOBS + 2)])
        failed = await here.until(wire.GenerateFailed)
        assert (failed.job, failed.result.code) == (MAX_JOBS + 1, "overloaded")
        assert (await here.pong()).waiting == MAX_JOBS
        here.send(wire.ForgetCall(1, "call"))
        assert (await here.pong()).waiting == 0


async def test_unloading_ends_what_runs_there() -> None:
    async with gateway() as here:
        await here.load(spec("llm", token_delay_s=0.01))
        await here.load(spec("llm", token_delay_s=0.01), 2)
        here.send(wire.StartGeneration(1, 1, generate(text="word " * 1000)))
        here.send(wire.StartGeneration(2, 2, generate(text="word " * 20)))
        await here.until(wire.NextToken)
        here.send(wire.Unload(1))
        await here.until(wire.Unloaded)
        count = sum(token.job == 1 for token in here.of(wire.NextToken))
        await here.until(wire.Generated)
        assert sum(token.job == 1 for token in here.of(wire.NextToken)) == count
        assert (await here.pong()).waiting == 0


async def test_a_result_too_large_for_a_frame_fails_its_job() -> None:
    async with gateway() as here:
        await here.load(spec("llm", factory="tests.engines.host.engines:Endless"))
        here.send(wire.StartGeneration(1, 1, generate()))
        assert (await here.until(wire.GenerateFailed)).result.code == "overloaded"


async def test_it_stops_when_told_to_and_when_the_gateway_is_gone() -> None:
    async with gateway() as here:
        here.send(wire.Stop())
        await here.server.stopped.wait()
    async with gateway() as here:
        here.channel.abort()
        await here.server.stopped.wait()
    async with gateway() as here:
        transport: Any = here.channel._transport
        transport.write(b"\x00\x00\x00\x01\xc1")
        await here.server.stopped.wait()
        await until(lambda: here.lost)


def test_a_short_chunk_is_left_as_it_is() -> None:
    chunk = SynthesisChunk(1, 0, bytes(9_600), 24_000, last=True)
    assert pieces(chunk) == [chunk]
    assert pieces(SynthesisChunk(1, 0, b"", 24_000, last=True))[0].last


async def test_tools_go_there_and_calls_come_back() -> None:
    tool = Tool("end_call", "Hang up.", '{"properties":{}}')
    called = Message("assistant", "Bye.", (ToolCall("a", "end_call", "{}"),))
    request = generate(text="please hang up", tools=(tool,))
    after = msgspec.structs.replace(generate(2), messages=(called, Message("tool", '{"status":"done"}', call_id="a")))
    async with gateway() as here:
        await here.load(spec("llm"))
        here.send(wire.StartGeneration(1, 1, request), wire.StartGeneration(1, 2, after))
        await here.until(wire.Generated, 2)
        (call,) = here.of(wire.Called)
        assert call == wire.Called(1, ToolCalled(1, "call_1_6", "end_call", "{}"))
        said = "".join(token.result.text for token in here.of(wire.NextToken) if token.job == 2)
        assert said == "The result is status done.", "the host's engine knows what became of the call"
