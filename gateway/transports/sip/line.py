"""A SIP call as a phone line: its signalling (:class:`.session.Session`) and its media (:class:`.media.RtpMedia`)."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engines.api import Pcm16
from gateway.transports.phone.line import Ability, LineError, LineEvents, PlayoutOwner, Quality
from gateway.transports.sip.address import BadSyntax, format_host, parse_uri
from gateway.transports.sip.asking import Done, Outcome
from gateway.transports.sip.telephone_event import MAX_DIGITS
from streaming.audio.keypad_tones import KEYS

if TYPE_CHECKING:
    from gateway.transports.sip.media import RtpMedia
    from gateway.transports.sip.session import Session

BYE_S = 2.0
"""How long a hang-up waits for its answer. The BYE is repeated for longer, but holds nothing up."""
DEFAULT_RATE_HZ = 8_000
TWICE_S = 0.5
"""A key by INFO and the same by RTP within that are one."""
MAX_TWICE = 16
"""Keys by INFO whose RTP may still come."""

_CODES = {404: "not_found", 408: "no_answer", 480: "no_answer", 486: "busy", 487: "no_answer", 600: "busy"}
_CODES |= {403: "forbidden", 405: "not_supported", 501: "not_supported", 603: "declined"}
_NUMBER = re.compile(r"\+?[0-9*#][0-9*#\-.() ]{0,40}")


class SipLine:
    """What tells it of things: the session, the media. What it tells: the call, once :meth:`connect` named it."""

    owner = PlayoutOwner.OURS

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.rate_hz = DEFAULT_RATE_HZ
        self.session: Session
        self.media: RtpMedia | None = None
        self.abilities = frozenset(Ability)
        self.answered = asyncio.Event()
        """The call is established, or over."""
        self.over = asyncio.Event()
        self.gone = asyncio.Event()
        """Nothing is left of its signalling."""
        self.cause: str | None = None
        """Why it is over, if the far end, or a failure, ended it."""
        self.trunk_domain: str | None = None
        """Of the trunk that the call came by."""
        self._events: LineEvents | None = None
        self._held = False
        self._is_established = False
        self._keys_by_rtp = False
        self._keys_by_info: deque[tuple[str, float]] = deque(maxlen=MAX_TWICE)
        """Each, and until when its RTP is no other one."""
        self._now_s = now_s

    def agreed(self) -> None:
        """The media is agreed on, and what the other side can do is known."""
        if self.media is not None:
            self.rate_hz = self.media.rate_hz
        if not self.session.takes_refer:
            self.abilities -= {Ability.TRANSFER}

    def connect(self, events: LineEvents) -> None:
        """This hears of the line from now on; what it missed it is told."""
        self._events = events
        if self._held:
            events.held(True)
        if self.cause is not None:
            events.hung_up(self.cause)

    # --- PhoneLine ------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self._held or (self.media is not None and self.media.congested)

    def play(self, pcm: Pcm16) -> None:
        if self.media is not None and not self.over.is_set():
            self.media.play(pcm)

    def mark(self, name: str) -> None:
        """We own the clock: there are none."""

    def clear(self) -> bool:
        return self.media is not None and self.media.clear()

    async def send_dtmf(self, digits: str) -> None:
        """As RTP events, or by INFO if the other side takes none."""
        self._check_up()
        assert self.media is not None
        try:
            await self.media.send_dtmf(digits)
        except LineError as error:
            if error.code != "no_keys":
                raise
            await self._send_by_info(digits)
        finally:
            if self._events is not None and not self.congested:
                self._events.writable()

    async def transfer(self, target: str) -> None:
        self._check_up()
        if not self.session.takes_refer:
            raise LineError("not_supported", "the other side does not take transfers")
        uri = self._uri_of(target)
        said = await _outcome(partial(self.session.refer, uri))
        if not said.ok:
            raise LineError(_CODES.get(said.status, "transfer_failed"), f"the transfer was refused ({said.status})")

    async def hold(self, on: bool) -> None:
        self._check_up()
        assert self.media is not None
        await self.media.hold(on)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def answered(said: Outcome) -> None:
            if not answer.done():
                answer.set_result(said)
            elif answer.cancelled() and said.ok:
                self.session.reoffer(_ignore)  # taken back below: the other side still has to hear of it

        self.session.reoffer(answered)
        try:
            said = await answer
        except asyncio.CancelledError:
            await self.media.hold(not on)
            if not answer.cancelled():
                self.session.reoffer(_ignore)  # it was answered at the same moment
            raise
        if not said.ok:
            await self.media.hold(not on)
            raise LineError("hold_failed", f"the other side refused to be put on hold or back ({said.status})")

    async def hang_up(self, cause: str) -> None:
        self._down(None)
        self.session.hang_up(re.sub(r"[^a-z_]", "", cause))
        try:
            async with asyncio.timeout(BYE_S):
                await self.gone.wait()
        except TimeoutError:
            pass  # its BYE goes on being repeated, and ends by itself
        finally:
            await self.free()

    async def free(self) -> None:
        """Close the media. Twice is fine."""
        if self.media is not None:
            await self.media.close()

    def quality(self) -> Quality:
        return self.media.quality() if self.media is not None else Quality()

    # --- the session's side ---------------------------------------------------------------------------------------

    def established(self) -> None:
        self._is_established = True
        if self.media is not None:
            self.media.start()
        self.answered.set()

    def hung_up(self, cause: str) -> None:
        self._down(cause)

    def closed(self) -> None:
        self._down(None)
        self.gone.set()

    def held(self, on: bool) -> None:
        if on == self._held:
            return
        self._held = on
        if self._events is not None:
            self._events.held(on)
            if not on:
                self._events.writable()

    def pressed(self, key: str) -> None:
        """Peers that send each key by INFO as well as by RTP are heard once."""
        if not self._keys_by_rtp:
            self._keys_by_info.append((key, self._now_s() + TWICE_S))
            self._press(key)

    # --- the media's side -----------------------------------------------------------------------------------------

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        if self._events is not None:
            self._events.audio(pcm, rate_hz, at_ms)

    def dtmf(self, digit: str) -> None:
        self._keys_by_rtp = True
        if not self._was_by_info(digit):
            self._press(digit)

    def _press(self, key: str) -> None:
        """While the call rings nobody would hear what a key is answered: the greeting comes first."""
        if not self._is_established:
            self.session.ua.count("sip_early_keys")
        elif self._events is not None:
            self._events.dtmf(key)

    def _was_by_info(self, digit: str) -> bool:
        """Those are from before the first by RTP: from then on INFO is not heard."""
        now_s = self._now_s()
        for said in self._keys_by_info:
            if said[0] == digit and now_s < said[1]:
                self._keys_by_info.remove(said)
                return True
        return False

    def suspect(self, silent: bool) -> None: ...

    def lost(self, cause: str) -> None:
        """The media is gone: so is the call, and the other side is told so by a BYE."""
        if not self.over.is_set():
            self._down(cause)
            self.session.hang_up(re.sub(r"[^a-z_]", "", cause))

    # --------------------------------------------------------------------------------------------------------------

    def _down(self, cause: str | None) -> None:
        self.answered.set()
        if self.over.is_set():
            return
        self.over.set()
        if cause is not None:
            self.cause = cause
            if self._events is not None:
                self._events.hung_up(cause)

    def _check_up(self) -> None:
        if self.over.is_set() or self.media is None:
            raise LineError("not_connected", "the call is over")

    async def _send_by_info(self, digits: str) -> None:
        if len(digits) > MAX_DIGITS or not KEYS.issuperset(digits.upper()):
            raise LineError("bad_keys", f"Keys are 0 to 9, *, # and A to D, at most {MAX_DIGITS} of them.")
        for key in digits.upper():
            self._check_up()
            said = await _outcome(partial(self.session.inform, key))
            if not said.ok:
                raise LineError("not_supported", f"The other side takes no keys ({said.status}).")

    def _uri_of(self, target: str) -> str:
        """A number goes to where the call came from: whoever connected it can connect others."""
        try:
            if parse_uri(target).scheme in {"sip", "sips", "tel"}:
                return target
        except BadSyntax:
            if _NUMBER.fullmatch(target):
                number = re.sub(r"[\-.() ]", "", target).replace("#", "%23")
                return f"sip:{number}@{self.trunk_domain or self._caller_s_place()}"
        raise LineError("bad_target", "the target is neither a number nor a SIP address")

    def _caller_s_place(self) -> str:
        """The host of its address; one that withholds its number has none (``anonymous.invalid``, RFC 3323): then that
        of its Contact."""
        dialog = self.session.dialog
        uri = dialog.remote_uri
        if uri.host.lower().endswith(".invalid"):
            uri = parse_uri(dialog.target)
        return format_host(uri.host) + (f":{uri.port}" if uri.port else "")


def _ignore(said: Outcome) -> None: ...


async def _outcome(begin: Callable[[Done], None]) -> Outcome:
    """What ``begin`` says in the end. Whoever stops waiting hears of it no more."""
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    begin(lambda said: None if done.done() else done.set_result(said))
    return await done
