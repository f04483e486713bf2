"""The codec: everything that is sent comes back whole, and nothing else is believed."""

from __future__ import annotations

import contextlib
import itertools
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.host import protocol as wire
from engines.host.protocol import FrameReader, ProtocolError
from streaming import jobs

texts = st.text(max_size=40)
numbers = st.integers(0, 2**40)
times = st.floats(allow_nan=False)
messages_ = st.builds(jobs.Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts)
priorities = st.sampled_from(jobs.Priority)
generates = st.builds(
    jobs.Generate,
    call=texts,
    epoch=numbers,
    messages=st.lists(messages_, max_size=4).map(tuple),
    priority=priorities,
    deadline=times,
    max_tokens=numbers,
    temperature=st.floats(0, 2),
)
syntheses = st.builds(
    jobs.Synthesize,
    call=texts,
    epoch=numbers,
    segment=numbers,
    text=texts,
    voice=texts,
    priority=priorities,
    deadline=times,
    speed=st.floats(0.5, 2),
    language=texts,
)
finalizations = st.builds(
    jobs.FinalizeTranscription, utterance=numbers, revision=numbers, priority=priorities, deadline=times
)
openings = st.builds(
    jobs.OpenTranscription,
    call=texts,
    utterance=numbers,
    start_samples=numbers,
    language=texts,
    partials=st.booleans(),
)
word_ends = st.builds(jobs.WordEnd, text_end=numbers, audio_end_ms=st.floats(0, 1e6))
chunks = st.builds(
    jobs.SynthesisChunk,
    epoch=numbers,
    segment=numbers,
    pcm=st.binary(max_size=64),
    rate_hz=numbers,
    last=st.booleans(),
    words=st.lists(word_ends, max_size=3).map(tuple),
)
usages = st.builds(jobs.Usage, prompt_tokens=numbers, prefilled_tokens=numbers, completion_tokens=numbers)
done = st.builds(jobs.GenerationDone, epoch=numbers, reason=st.sampled_from(["stop", "length"]), usage=usages)
options = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-5, 5) | texts | st.lists(texts), max_size=3)
backends = st.builds(
    wire.Backend,
    name=texts,
    kind=st.sampled_from(["stt", "llm", "tts"]),
    factory=texts,
    extra=st.none() | texts,
    shares=st.sampled_from([None, "lane", "mlx"]),
    options=options,
)

to_host = st.one_of(
    st.builds(wire.Load, engine=numbers, backend=backends, weights=st.lists(texts, max_size=3).map(tuple)),
    st.builds(wire.Unload, engine=numbers),
    st.builds(wire.OpenStream, engine=numbers, job=numbers, request=openings),
    st.builds(wire.Feed, job=numbers, pcm=st.binary(max_size=64)),
    st.builds(wire.FinalizeStream, job=numbers, request=finalizations),
    st.builds(wire.CloseStream, job=numbers),
    st.builds(wire.StartGeneration, engine=numbers, job=numbers, request=generates),
    st.builds(wire.Prioritize, engine=numbers, call=texts, epoch=numbers),
    st.builds(wire.Postpone, engine=numbers, call=texts, epoch=numbers, until=times),
    st.builds(wire.StartSynthesis, engine=numbers, job=numbers, request=syntheses),
    st.builds(wire.CancelEpoch, engine=numbers, call=texts, epoch=numbers),
    st.builds(wire.ForgetCall, engine=numbers, call=texts),
    st.builds(wire.Ping, number=numbers),
    st.just(wire.Stop()),
)


def failing(kind: type[Any], *fields: str) -> st.SearchStrategy[Any]:
    return st.builds(kind, **dict.fromkeys(fields, numbers), code=texts, message=texts)


def carried(kind: type[Any], result: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, job=numbers, result=result)


from_host = st.one_of(
    st.builds(wire.Loaded, engine=numbers, rate_hz=numbers, voices=st.lists(texts, max_size=3).map(tuple)),
    failing(wire.LoadFailed, "engine"),
    st.builds(wire.Unloaded, engine=numbers),
    carried(wire.Partial, st.builds(jobs.PartialTranscript, utterance=numbers, text=texts)),
    carried(wire.Final, st.builds(jobs.FinalTranscript, utterance=numbers, revision=numbers, text=texts)),
    carried(wire.FinalFailed, failing(jobs.TranscriptionFailed, "utterance", "revision")),
    carried(wire.NextToken, st.builds(jobs.Token, epoch=numbers, text=texts)),
    carried(
        wire.Called,
        st.builds(jobs.ToolCalled, epoch=numbers, call_id=texts, name=texts, arguments=texts),
    ),
    carried(wire.Generated, done),
    carried(wire.GenerateFailed, failing(jobs.GenerationFailed, "epoch")),
    carried(wire.Chunk, chunks),
    carried(wire.SpeechFailed, failing(jobs.SynthesisFailed, "epoch", "segment")),
    st.builds(
        wire.Pong,
        number=numbers,
        waiting=numbers,
        overflowed=numbers,
        vitals=st.builds(wire.Vitals, numbers, numbers, texts, st.booleans(), st.integers(0, 3)),
    ),
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at)]


@settings(deadline=None)
@given(st.lists(to_host, max_size=5), st.lists(from_host, max_size=5), st.lists(st.integers(0, 10_000), max_size=8))
def test_everything_comes_back_as_it_was_sent_however_it_is_cut(
    down: list[Any], up: list[Any], cuts: list[int]
) -> None:
    for messages, decoder in ((down, wire.TO_HOST), (up, wire.FROM_HOST)):
        data = wire.hello_frame(7) + wire.frame([wire.packed(message) for message in messages])
        reader = FrameReader()
        bodies = [body for part in split(data, cuts) for body in reader.feed(part)]
        reader.finish()
        assert wire.read_hello(bodies[0]) == wire.Hello(wire.MAGIC, wire.VERSION, 7)
        assert wire.read_messages(bodies[1], decoder) == messages


def test_every_message_has_its_round_trip_above() -> None:
    for union, strategy in ((wire.ToHost, to_host), (wire.FromHost, from_host)):
        assert len(union.__args__) == len(strategy.original_strategies)  # type: ignore[attr-defined]
    assert set(wire.RESULTS.values()) == set(wire.Result.__args__)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_an_error_of_ours_and_nothing_worse(data: bytes) -> None:
    for decoder in (wire.TO_HOST, wire.FROM_HOST):
        with contextlib.suppress(ProtocolError):
            wire.read_messages(data, decoder)
    with pytest.raises(ProtocolError):
        wire.read_hello(data)
    reader = FrameReader(64)
    with contextlib.suppress(ProtocolError):
        for body in reader.feed(data):
            assert len(body) <= 64
        reader.finish()


@settings(deadline=None)
@given(st.data())
def test_a_message_of_the_wrong_shape_is_garbage(data: Any) -> None:
    message = msgspec.msgpack.decode(wire.packed(data.draw(to_host)))
    index = data.draw(st.integers(0, len(message) - 1))
    message[index] = {"no": "such field"}
    with pytest.raises(ProtocolError) as caught:
        wire.read_messages(msgspec.msgpack.encode([message]), wire.TO_HOST)
    assert caught.value.code == "garbage"


def test_a_frame_beyond_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="at most 100") as caught:
        FrameReader(100).feed(struct.pack(">I", 101))
    assert caught.value.code == "frame_too_large"


def test_an_end_inside_a_frame_is_told_apart_from_one_between_two() -> None:
    reader = FrameReader()
    frame = wire.frame([wire.packed(wire.Stop())])
    assert reader.feed(frame + frame[:-1]) == [frame[4:]]
    with pytest.raises(ProtocolError, match=f"{len(frame) - 1} bytes into a frame"):
        reader.finish()
    assert reader.feed(frame[-1:]) == [frame[4:]]
    reader.finish()


def test_a_message_too_long_for_any_frame_is_not_sent() -> None:
    with pytest.raises(wire.TooLargeError, match="a Feed of"):
        wire.packed(wire.Feed(1, bytes(wire.MAX_FRAME_BYTES)))
    longest = wire.packed(wire.Feed(1, bytes(wire.MAX_FRAME_BYTES - 100)))
    assert len(wire.frame([longest])) - 4 <= wire.MAX_FRAME_BYTES


def test_another_version_is_told_so_and_later_ones_may_say_more() -> None:
    with pytest.raises(ProtocolError, match="version 3 of the host protocol, this one 2") as caught:
        wire.read_hello(wire.hello_frame(1, version=3)[4:])
    assert caught.value.code == "version_mismatch"
    wire.read_hello(msgspec.msgpack.encode([wire.MAGIC, wire.VERSION, 1, "a later field"]))
    with pytest.raises(ProtocolError, match="some other program"):
        wire.read_hello(msgspec.msgpack.encode(["http", 1, 1]))
