"""The gateway's process: ``server CORE call|echo VAD_MODEL|-``. It says where it is, and what it used."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import gateway.transports.carriers.stream
import gateway.transports.sip.answering
from gateway.app import create_app
from gateway.server import _Server, _uvicorn_config, listening_socket
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logs
from scripts.bench_media.wire import Message, run_child
from scripts.bench_phones.subjects import GREETING, EchoCall, Heard, engines

MAX_CALLS = 2_000
START_S = 60.0

SETTINGS = {
    "preset": "null",
    "port": 0,
    "max_calls": MAX_CALLS,
    "sip": {"enabled": True, "port": 0, "requests_per_s": 10_000},
    "twilio": {"enabled": True, "allow_unsigned": True},
    "agents": {"default": {"greeting": GREETING, "instructions": "Talk."}},
}


async def serve(arguments: Sequence[str]) -> Callable[[Message], Awaitable[Message]]:
    subject, model = arguments
    configure_logs(level="error", as_json=False, caller_text=False)
    if subject == "echo":
        for module in (gateway.transports.carriers.stream, gateway.transports.sip.answering):
            assert hasattr(module, "PhoneCall")
            module.PhoneCall = EchoCall  # type: ignore[attr-defined]
    heard = Heard()
    behind = engines(heard, Path(model) if model != "-" else None)
    for engine in (behind.vad, behind.stt, behind.llm, behind.tts):
        await engine.start()
    settings = Settings.model_validate(SETTINGS)
    app = create_app(settings, behind)
    listener = listening_socket(settings.host, 0)
    # It runs for as long as this process does: nobody waits for its end.
    serving = asyncio.create_task(_Server(_uvicorn_config(app, settings)).serve(sockets=[listener]))
    async with asyncio.timeout(START_S):
        await app.state.startup.settled.wait()
    if app.state.startup.error is not None:
        raise app.state.startup.error
    gc.collect()
    gc.freeze()
    sip = app.state.gateway.wires.sip

    async def answer(message: Message) -> Message:
        assert not serving.done()
        if message["do"] == "where":
            return {"http": listener.getsockname()[1], "sip": sip.ports["udp"]}
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "at_s": time.monotonic(),
            "calls": app.state.gateway.switchboard.live,
            "causes": Counter(str(record.cause) for record in app.state.gateway.recent),
            "fed_samples": heard.fed_samples,
            "scored_samples": heard.scored_samples,
        }

    return answer


if __name__ == "__main__":
    run_child(serve)
