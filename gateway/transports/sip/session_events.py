"""What a call's signalling asks of its media, and tells its application."""

from __future__ import annotations

from typing import Protocol


class Sdp(Protocol):
    """The media's side of an offer and its answer. All of it raises :class:`BadSdp`, except an offer."""

    @property
    def remote_hold(self) -> bool: ...
    def offer(self) -> str: ...
    def answer(self, offer_sdp: str) -> str: ...
    def accept(self, answer_sdp: str) -> None: ...


class SessionEvents(Protocol):
    """None of these block, none raise."""

    def established(self) -> None:
        """Both sides know that the call is answered."""

    def hung_up(self, cause: str) -> None:
        """The call is down, and it was not us. Once."""

    def closed(self) -> None:
        """Nothing of the dialog is left. Once, and last."""

    def pressed(self, key: str) -> None:
        """A key came by INFO."""

    def held(self, on: bool) -> None: ...
