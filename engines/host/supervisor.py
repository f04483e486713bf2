"""One engine host under supervision: started when the first engine is loaded, restarted whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import structlog

from engines.api import EngineError, HostHealth, LaneHealth, Overload
from engines.host import protocol as wire
from engines.host.backoff import Backoff
from engines.host.channel import Channel
from engines.host.client import HOST_DOWN, HOST_LOST, HostedEngine
from engines.host.jobs import Jobs
from engines.host.process import HostProcess, HostSpec, SetUp
from engines.host.protocol import FROM_HOST
from engines.host.times import HostTimes
from engines.overload import Lateness

GONE_S = 1.0
"""A host whose connection is lost may take this long to be gone by itself."""

_log = structlog.get_logger(__name__)


class Host:
    """Implements :class:`engines.host.client.Link`. Everything is called on the event loop."""

    def __init__(
        self,
        spec: HostSpec,
        *,
        lateness: Lateness,
        times: HostTimes = HostTimes(),  # noqa: B008 (frozen)
        set_up: SetUp | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.spec = spec
        self.jobs = Jobs(lateness)
        self.restarts = 0
        self._times = times
        self._set_up = set_up
        self._backoff = backoff or Backoff(random.random)
        self._reload_backoff = Backoff(random.random, first_s=1.0)
        self._engines: dict[int, HostedEngine] = {}
        self._ready: set[int] = set()
        self._loading: dict[int, asyncio.Future[None]] = {}
        self._unloading: dict[int, asyncio.Future[None]] = {}
        self._run: asyncio.Task[None] | None = None
        self._process: HostProcess | None = None
        self._channel: Channel | None = None
        self._lost: asyncio.Future[str] | None = None
        self._why_down = ""
        self._down = False
        """It is lost, and not started again yet."""
        self._last_exit_code: int | None = None
        self._closing = asyncio.Event()
        self._pong: wire.Pong | None = None
        self._silent = self._troubled = 0
        self._suspected = False
        """It does not answer, and may yet."""

    # --- what operators see -----------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Of the process there is now."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """Of the last process, once it has ended."""
        return self._last_exit_code

    @property
    def started(self) -> bool:
        return self._run is not None

    @property
    def reason(self) -> str:
        """Why not all of its engines take requests; empty if they do."""
        if not self.started:
            return ""
        if self._channel is None:
            return f"the {self.spec.name} host is down: {self._why_down or 'it starts'}"
        if self._suspected:
            return f"the {self.spec.name} host does not answer"
        missing = self._engines.keys() - self._ready - self._loading.keys()
        names = ", ".join(sorted(self._engines[number].spec.name for number in missing))
        if names:
            return f"the {self.spec.name} host was restarted and loads {names}"
        trouble = self._pong.vitals.trouble if self._pong is not None and not self._loading else ""
        return f"the {self.spec.name} host: {trouble}" if trouble else ""

    @property
    def health(self) -> HostHealth:
        pong, reason = self._pong, self.reason
        return HostHealth(
            up=self._channel is not None and not reason,
            restarts=self.restarts,
            memory_bytes=pong.vitals.memory_bytes if pong is not None else 0,
            device_bytes=pong.vitals.device_bytes if pong is not None else 0,
            waiting=pong.waiting if pong is not None else 0,
            pid=self.pid,
            reason=reason,
            lanes={} if pong is None else {name: _lane(lane) for name, lane in pong.vitals.lanes.items()},
            cpu_s=pong.vitals.cpu_s if pong is not None else 0.0,
        )

    @property
    def overload(self) -> Overload:
        """As the host's own schedulers see it."""
        return Overload(self._pong.vitals.overload) if self._pong is not None else Overload.NONE

    # --- Link -------------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        if self._channel is not None and not self._channel.send(message):
            self._lose("it does not read what it is sent")

    def why_down(self, engine: int) -> str | None:
        if self._channel is not None and engine in self._ready and not self._suspected:
            return None  # also while its thread is in trouble: that may end
        return self.reason or f"this engine is not loaded in the {self.spec.name} host"

    async def load(self, engine: HostedEngine) -> None:
        if engine.number in self._ready:
            return
        if self._closing.is_set():
            raise EngineError("host_closed", f"the {self.spec.name} host was closed")
        if self._down:
            raise EngineError(HOST_DOWN, self.reason)
        self._engines[engine.number] = engine
        future = self._loading[engine.number] = asyncio.get_running_loop().create_future()
        if self._run is None:
            self._run = asyncio.create_task(self._supervise(), name=f"{self.spec.name} host")
        elif self._channel is not None:
            self._send_load(engine)
        try:
            async with asyncio.timeout(self._times.load_s):
                await future
        except TimeoutError:
            raise EngineError("load_timeout", f"{engine.spec.name} did not load in {self._times.load_s:g} s") from None
        finally:
            self._loading.pop(engine.number, None)
            if engine.number not in self._ready:
                self._engines.pop(engine.number, None)
                self.send(wire.Unload(engine.number))

    async def unload(self, engine: HostedEngine) -> None:
        self._engines.pop(engine.number, None)
        if engine.number not in self._ready:
            return
        self._ready.discard(engine.number)
        future = self._unloading[engine.number] = asyncio.get_running_loop().create_future()
        self.send(wire.Unload(engine.number))
        try:
            async with asyncio.timeout(self._times.close_s):
                await future  # also when the host is lost: then its memory is free, too
        except TimeoutError:
            _log.error("an engine did not unload in time", host=self.spec.name, backend=engine.spec.name)
        finally:
            self._unloading.pop(engine.number, None)

    async def close(self) -> None:
        """Stop the host in order, or by force after a while. Safe to call twice."""
        self._closing.set()
        run = self._run
        if run is None:
            return
        if self._engines.keys() - self._ready and self._process is not None:
            self._process.kill()  # it is loading, which may take minutes, and holds nothing that anybody needs
        else:
            self.send(wire.Stop())
        done, _ = await asyncio.wait({run}, timeout=self._times.close_s)
        if not done:
            self._lose("it does not stop")
        await run

    # --- supervision ------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._closing.is_set():
            loop = asyncio.get_running_loop()
            self._lost = lost = loop.create_future()
            up_at = loop.time()
            failed = "host_failed"
            try:
                await self._connect(lost)
                failed = HOST_LOST
                for engine in list(self._engines.values()):
                    self._send_load(engine)
                why = await self._watch(lost)
            except EngineError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 (whatever it is, a host that is not supervised would be for ever down)
                _log.exception("the supervision of an engine host failed", host=self.spec.name)
                why = repr(error)
            await self._went_down(why)
            doing = "could not be started" if failed == "host_failed" else "was lost while it loaded"
            self._fail_loads(EngineError(failed, f"the {self.spec.name} host {doing}: {self._why_down}"))
            if self._closing.is_set():
                return
            if not self._engines:
                self._down = False
                self._run = None  # nobody needs it any more; the next load starts it anew
                return
            if loop.time() - up_at >= self._times.stable_s:
                self._backoff.reset()
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next_s()):
                    await self._closing.wait()

    async def _connect(self, lost: asyncio.Future[str]) -> None:
        """Raises :class:`EngineError`."""
        self._down = False
        self._process = process = HostProcess.spawn(self.spec, self._set_up)
        channel = Channel(
            FROM_HOST,
            on_messages=self._on_messages,
            on_lost=self._on_lost,
            limit_bytes=self._times.outbox_bytes,
        )
        await channel.connect(process.socket)
        first = (asyncio.create_task(channel.greeted.wait()), asyncio.create_task(self._closing.wait()))
        waited: set[asyncio.Future[Any]] = {*first, lost}
        await asyncio.wait(waited, timeout=self._times.greet_s, return_when=asyncio.FIRST_COMPLETED)
        for task in first:
            task.cancel()
        if lost.done() or not channel.greeted.is_set():
            if not lost.done():
                late = f"it did not greet in {self._times.greet_s:g} s"
                process.kill()
                channel.abort(TimeoutError("it was stopped while it started" if self._closing.is_set() else late))
                await channel.closed.wait()
            raise EngineError("host_failed", lost.result())
        self._channel = channel
        self._silent = self._troubled = 0
        self._suspected = False
        _log.info("engine host started", host=self.spec.name, pid=process.pid)

    async def _watch(self, lost: asyncio.Future[str]) -> str:
        """Ping until the connection is lost; why it was."""
        number = 0
        while not lost.done():
            number += 1
            self.send(wire.Ping(number))
            await asyncio.wait({lost}, timeout=self._times.ping_every_s)
            self._silent += 1
            loading = self._engines.keys() - self._ready
            patient = loading and not self._suspected
            limit = self._times.silent_pings_loading if patient else self._times.silent_pings
            if self._silent > limit:
                self._lose("it hangs: its event loop does not answer")
            elif self._silent > self._times.suspect_pings and not patient:
                self._suspect()
            elif loading or self._pong is None:
                continue
            elif self._pong.vitals.dead:
                self._lose("its MLX thread has died")
            elif self._troubled >= self._times.troubled_pings:
                self._lose(f"it hangs: {self._pong.vitals.trouble}")
        return lost.result()

    def _suspect(self) -> None:
        """It may only be starved: it keeps its models, and nobody waits for it. When it goes on, it finds that what it
        was doing is wanted no more."""
        if self._suspected:
            return
        _log.warning("an engine host does not answer", host=self.spec.name, jobs=len(self.jobs))
        self._suspected = True
        for job in self.jobs:
            self.send(job.undo)
        self.jobs.fail_all(HOST_LOST, f"the {self.spec.name} host ceased to answer while it worked on this")

    def _lose(self, why: str) -> None:
        """We give it up: kill it, and all jobs fail at once."""
        channel, process = self._channel, self._process
        if channel is not None and process is not None:
            _log.error("an engine host is given up", host=self.spec.name, pid=process.pid, reason=why)
            process.kill()
            channel.abort(ConnectionError(why))

    def _on_lost(self, error: Exception | None) -> None:
        """The socket is closed. Jobs end now, not when the process was reaped."""
        # That the peer is gone is no reason: how its process ended is.
        why = str(error) if error is not None and not isinstance(error, ConnectionResetError | BrokenPipeError) else ""
        self._channel = None
        self._ready.clear()
        self._why_down = why or "it ended"
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(why)
        message = f"the {self.spec.name} host was lost while it worked on this"
        self.jobs.fail_all(HOST_LOST, message)
        for future in self._unloading.values():
            _settle(future)

    async def _went_down(self, why: str) -> None:
        process = self._process
        self._channel = None
        self._pong = None
        if process is not None:
            said = await process.ended(self._times.close_s if self._closing.is_set() else GONE_S)
            self._last_exit_code = process.exit_code
            self._process = None
            why = f"{why}; it {said}" if why else f"it {said}"
        self._why_down = why
        self._down = True
        if not self._closing.is_set():
            _log.error("engine host lost", host=self.spec.name, reason=why, restarts=self.restarts)
        elif self._last_exit_code != 0:
            _log.error("engine host did not close cleanly", host=self.spec.name, reason=why)

    # --- messages ---------------------------------------------------------------------------------------------

    def _on_messages(self, messages: list[wire.FromHost]) -> None:
        self._silent = 0  # whatever it says, it lives
        if self._suspected:
            self._suspected = False
            _log.info("an engine host answers again", host=self.spec.name)
        for message in messages:
            if isinstance(message, wire.Pong):
                self._pong = message
                self._troubled = self._troubled + 1 if message.vitals.trouble else 0
            elif isinstance(message, wire.Loaded):
                self._on_loaded(message)
            elif isinstance(message, wire.LoadFailed):
                self._on_load_failed(message)
            elif isinstance(message, wire.Unloaded):
                _settle(self._unloading.get(message.engine))
            else:
                self.jobs.answer(message.job, message.result)

    def _send_load(self, engine: HostedEngine) -> None:
        spec = engine.spec
        kind: Any = spec.kind
        backend = wire.Backend(spec.name, kind, spec.factory, spec.extra, spec.shares, dict(spec.options))
        self.send(wire.Load(engine.number, backend, engine.weights))

    def _on_loaded(self, message: wire.Loaded) -> None:
        engine = self._engines.get(message.engine)
        if engine is None:
            self.send(wire.Unload(message.engine))  # nobody waits for it any more
            return
        engine.loaded = message
        self._ready.add(message.engine)
        self._reload_backoff.reset()
        _settle(self._loading.get(message.engine))

    def _on_load_failed(self, message: wire.LoadFailed) -> None:
        engine = self._engines.get(message.engine)
        future = self._loading.get(message.engine)
        if future is not None:
            _settle(future, EngineError(message.code, message.message))
        elif engine is not None:  # it was loaded before the host was lost, and will be again
            _log.error(
                "a model could not be loaded again",
                backend=engine.spec.name,
                code=message.code,
                message=message.message,
            )
            channel = self._channel
            asyncio.get_running_loop().call_later(self._reload_backoff.next_s(), self._load_again, channel, engine)

    def _load_again(self, channel: Channel | None, engine: HostedEngine) -> None:
        if channel is self._channel and channel is not None and engine.number in self._engines:
            self._send_load(engine)

    def _fail_loads(self, error: EngineError) -> None:
        for number, future in self._loading.items():
            self._engines.pop(number, None)
            _settle(future, error)


def _lane(said: wire.Lane) -> LaneHealth:
    return LaneHealth(said.slots, said.waiting, said.running, said.late_ms, said.busy_s, Overload(said.overload))


def _settle(future: asyncio.Future[None] | None, error: Exception | None = None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
