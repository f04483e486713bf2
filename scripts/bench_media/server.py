"""``server stock|ours|pipecat PORT TALK_MS SILENCE_MS``: answers WebRTC calls by the Realtime protocol's route.

It says of the protocol what a caller waits for (``session.created``, ``session.updated``) and no more: what is measured
is the transport.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scripts.bench_media.talk import HEARD_HZ, LINES, Pattern, Speech, joined_lines
from scripts.loopback import only_loopback

CALLS = "/v1/realtime/calls"
MODULES = {"stock": "stock", "ours": "ours", "pipecat": "smallwebrtc"}
HELLO = ({"type": "session.created", "session": {"id": "call"}}, {"type": "session.updated"})
"""The first messages on the data channel."""

GREETINGS = tuple(map(json.dumps, HELLO))
MOST_UNHEARD_S = 1.0


class Conversation:
    """One call's: what the agent says and when it talks, and how much it has heard. An agent that has not heard as much
    as the caller has had time to say falls silent: no call shall be cheap because half of it was not done."""

    def __init__(
        self, speech: Speech, pattern: Pattern, call: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.speech = speech
        self._clock = clock
        self._pattern = pattern
        self._call = call
        self._began_s: float | None = None
        self._heard_samples = 0

    def hear(self, samples: int) -> None:
        """At 16 kHz."""
        if self._began_s is None:
            self._began_s = self._clock()
        self._heard_samples += samples

    @property
    def talking(self) -> bool:
        now_s = self._clock()
        if self._began_s is None or now_s - self._began_s - self._heard_samples / HEARD_HZ > MOST_UNHEARD_S:
            return False
        return self._pattern.talking(now_s * 1000, self._call)


class Call(Protocol):
    """One way to answer a call."""

    async def answer(self, offer_sdp: str) -> str: ...

    async def close(self) -> None: ...


def application(kind: str, pattern: Pattern) -> Starlette:
    """Only the kind that is asked for is imported: each needs what the other's environment may lack."""
    module = importlib.import_module(f"scripts.bench_media.{MODULES[kind]}")
    speech = Speech(joined_lines(LINES))
    numbers = itertools.count(1)
    calls: dict[int, Call] = {}

    async def answer(request: Request) -> Response:
        number = next(numbers)
        call: Call = module.Call(Conversation(speech, pattern, number))
        calls[number] = call
        sdp = await call.answer((await request.body()).decode())
        return Response(sdp, 201, {"Location": f"{CALLS}/{number}"}, "application/sdp")

    async def hang_up(request: Request) -> Response:
        call = calls.pop(request.path_params["number"], None)
        if call is None:
            return Response(status_code=404)
        await call.close()
        return Response()

    return Starlette(
        routes=[
            Route(CALLS, answer, methods=["POST"]),
            Route(f"{CALLS}/{{number:int}}/hangup", hang_up, methods=["POST"]),
        ]
    )


def main() -> None:
    kind, port, talk_ms, silence_ms = sys.argv[1:]
    only_loopback()
    app = application(kind, Pattern(int(talk_ms), int(silence_ms)))
    uvicorn.run(app, host="127.0.0.1", port=int(port), loop="uvloop", log_level="error")


if __name__ == "__main__":
    main()
