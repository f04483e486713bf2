"""Registering with a trunk, against a registrar that is written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from gateway.sip_settings import TrunkSettings
from gateway.transports.sip.digest import DigestGate
from gateway.transports.sip.guard import SourceGuard
from gateway.transports.sip.message import Request, answer, parse
from gateway.transports.sip.registration import PING_S, Registration
from gateway.transports.sip.sockets import PING
from gateway.transports.sip.transaction import Peer
from tests.gateway.transports.sip.sip_rig import Agent, Net

REGISTRAR = "192.0.2.50"
TRUNK = TrunkSettings.model_validate({"server": "sip.example", "user": "+1555", "password": "secret", "expires_s": 600})
Reply = Callable[[Request], tuple[int, list[tuple[str, str]]]]


@dataclass
class Rig:
    trunk: TrunkSettings = field(default_factory=lambda: TRUNK)
    reply: Reply | None = None
    known: bool = True
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.net = Net()
        self.agent = Agent(self.net, "192.0.2.1")
        self.asked: list[Request] = []
        self.slept: list[float] = []
        self.awake = asyncio.Event()
        self.pings = 0
        self.resting_s = 0.0
        self.guard = SourceGuard(
            allow=(),
            digest=None,
            anyone=False,
            local_only=False,
            requests_per_s=1,
            has_call=lambda _: False,
            now_s=lambda: self.net.now_s,
        )
        self.registration = Registration(
            self.agent.ua, "main", self.trunk, self.guard, sleep=self.sleep, find=self.find
        )
        self.net.send = self.carry  # type: ignore[method-assign]

    def carry(self, data: bytes, source: Peer, to: Peer) -> None:
        if data == PING:
            self.pings += 1
            return
        request = parse(data)
        assert isinstance(request, Request)
        assert to.host == REGISTRAR
        self.asked.append(request)
        if self.reply is not None:
            status, headers = self.reply(request)
            said = answer(request, status, to_tag="r", headers=headers).encode()
            asyncio.get_running_loop().call_soon(self.agent.ua.receive, said, to)

    async def find(self, host: str, port: int) -> list[str]:
        if not self.known:
            raise OSError("nobody knows")
        return [REGISTRAR, "192.0.2.51"]

    async def sleep(self, time_s: float) -> None:
        """Between pings no time goes by."""
        if time_s == PING_S and self.registration.registered:
            self.resting_s += time_s
            return
        self.slept.append(self.resting_s + time_s)
        self.resting_s = 0.0
        self.awake.clear()
        await self.awake.wait()

    async def settle(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self.registration.run())
        for _ in range(30):
            await asyncio.sleep(0)

    async def wake(self) -> None:
        self.awake.set()
        await self.settle()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    assert made.task is not None
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)
    made.agent.ua.close()


def with_password(registrar_users: dict[str, str]) -> Reply:
    gate = DigestGate(registrar_users, "sip.example", secret=b"k", now_s=lambda: 1.0, random_hex=lambda: "00")

    def reply(request: Request) -> tuple[int, list[tuple[str, str]]]:
        verdict = gate.check(request.headers.all("authorization"), "REGISTER", "us")
        if verdict == "ok":
            return 200, [("contact", f"{request.headers.get('contact')};expires=120"), ("expires", "600")]
        return 401, gate.challenges("us")

    return reply


async def test_registered_by_password_and_refreshed_in_time(rig: Rig) -> None:
    rig.reply = lambda request: (200, [("contact", f"{request.headers.get('contact')};expires=120")])
    await rig.settle()
    (asked,) = rig.asked
    assert asked.uri == "sip:sip.example"
    assert asked.headers.get("to") == "<sip:+1555@sip.example>"
    assert asked.headers.get("contact") == "<sip:+1555@192.0.2.1:5060>"
    assert asked.headers.get("expires") == "600"
    assert rig.slept == [96.0]
    assert rig.registration.registered
    assert rig.guard.is_allowed(REGISTRAR)
    assert rig.guard.is_allowed("192.0.2.51")
    assert rig.pings == 3
    await rig.wake()
    assert rig.asked[1].call_id == asked.call_id
    assert rig.asked[1].cseq[0] > asked.cseq[0]


async def test_a_challenge_is_answered(rig: Rig) -> None:
    rig.reply = with_password({"+1555": "secret"})
    await rig.settle()
    assert len(rig.asked) == 2
    assert rig.registration.registered


async def test_the_wrong_password_is_not_tried_over_and_over(rig: Rig) -> None:
    rig.reply = with_password({"+1555": "other"})
    await rig.settle()
    assert len(rig.asked) == 2
    assert not rig.registration.registered
    assert 5.0 <= rig.slept[0] <= 6.25
    for _ in range(6):
        await rig.wake()
    assert 300 <= rig.slept[-1] <= 375, "it backs off"
    assert rig.agent.counted.count("sip_registration_failed") == 7


async def test_too_brief(rig: Rig) -> None:
    def reply(request: Request) -> tuple[int, list[tuple[str, str]]]:
        brief = int(request.headers.get("expires")) < 900
        return (423, [("min-expires", "900")]) if brief else (200, [])

    rig.reply = reply
    await rig.settle()
    assert [request.headers.get("expires") for request in rig.asked] == ["600", "900"]
    assert rig.slept == [720.0]


async def test_what_the_registrar_grants(rig: Rig) -> None:
    granted = iter(
        [
            [("expires", "60")],
            [("expires", "nonsense")],
            [("contact", "<sip:other@x>;expires=9999"), ("expires", "100")],
            [("contact", "<nonsense"), ("expires", "100")],
            [("expires", "5")],
        ]
    )
    rig.reply = lambda request: (200, next(granted))
    await rig.settle()
    for _ in range(4):
        await rig.wake()
    assert rig.slept == [48.0, 480.0, 80.0, 80.0, 24.0]


async def test_nobody_answers(rig: Rig) -> None:
    await rig.settle()
    rig.net.run(33)
    await rig.settle()
    assert not rig.registration.registered
    assert len(rig.slept) == 1


async def test_a_name_that_nobody_knows(rig: Rig) -> None:
    rig.known = False
    await rig.settle()
    assert rig.asked == []
    assert len(rig.slept) == 1


async def test_leaving_is_told_and_ends_the_trust() -> None:
    rig = Rig(reply=lambda request: (200, []))
    await rig.settle()
    assert rig.task is not None
    rig.task.cancel()
    await rig.settle()
    assert rig.task.done()
    assert rig.asked[-1].headers.get("expires") == "0"
    assert not rig.guard.is_allowed(REGISTRAR)
    rig.agent.ua.close()


async def test_leaving_waits_for_no_one_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.sip.registration.LEAVE_S", 0.0)
    rig = Rig(reply=lambda request: (200, []))
    await rig.settle()
    rig.reply = None
    assert rig.task is not None
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)
    rig.agent.ua.close()
    assert rig.agent.is_clean
