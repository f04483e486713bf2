"""A host's process as its gateway sees it: spawned, watched over, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.api import EngineError

ROOT = Path(__file__).parents[2]
"""Where this release's packages lie."""
_POLL_S = 0.02
_KILLED_S = 10.0
"""How long the kernel may take to end a killed process: uninterruptible I/O, a GPU's driver."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How a host is run."""

    name: str
    python: Path | None = None
    """Its interpreter, with what its backends need installed; default: the gateway's own. Both must run the same
    release of Offhook (the protocol's version is checked)."""
    cores: int | None = None
    """CPU jobs at once; default: as many as it may use."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Beside the gateway's own."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """``reference`` (``"module:attr"``) is called in every host first, with the keywords: how it logs."""

    reference: str
    keywords: Mapping[str, object] = field(default_factory=dict)


class HostProcess:
    """A running child. ``socket`` is our end of the only connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self.socket = sock

    @classmethod
    def spawn(cls, spec: HostSpec, set_up: SetUp | None) -> HostProcess:
        """Start it, from the thread whose end shall be the child's (the event loop's). Takes about 2 ms.

        Raises:
            EngineError: ``host_failed``: there is no such interpreter, or no process can be had.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            python = str(spec.python or sys.executable)
            called = None if set_up is None else [set_up.reference, dict(set_up.keywords)]
            command = [python, "-P", "-m", "engines.host", "--fd", str(theirs.fileno()), "--name", spec.name]
            command += ["--set-up", json.dumps(called)]
            if spec.cores is not None:
                command += ["--cores", str(spec.cores)]
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # its lifeline: never written to
                    stdout=2,  # ours is for what we announce
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, **_import_path(), **spec.environ},
                    start_new_session=True,  # a terminal's Ctrl-C is for us
                )
            except OSError as error:
                ours.close()
                raise EngineError("host_failed", f"{python}: {error}") from None
        ours.setblocking(False)
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def ended(self, within_s: float) -> str:
        """Wait for its end, then kill it; how it ended, for people. Frees all we hold of it."""
        killed = not await self._reaped(within_s)
        if killed:
            self.kill()
            await self._reaped(_KILLED_S)
        self.socket.close()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        return "was killed, as it did not end by itself" if killed else _said(self._process.returncode)

    @property
    def exit_code(self) -> int | None:
        """0 after an orderly end; negative: the signal that ended it; None while it runs."""
        return self._process.returncode

    async def _reaped(self, within_s: float) -> bool:
        """Polled: a process that has closed its socket is about to end, so this lasts for moments, and needs neither
        a thread nor a signal handler."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while self._process.poll() is None:
            if loop.time() >= until:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def _said(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _import_path() -> dict[str, str]:
    """Lets another interpreter import this release; not the libraries that lie beside it, which are for ours only."""
    if ROOT.name in ("site-packages", "dist-packages"):
        return {}
    rest = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{rest}" if rest else str(ROOT)}
