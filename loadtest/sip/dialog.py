"""What a call's requests are written from (RFC 3261 section 12): who speaks to whom, and by which way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.sip.message import SipMessage, SipUri, serialise

_AGENT = "offhook-call"


class Dialog:
    """One call's, caller's side. The address dialled is its outbound proxy: everything goes there, whatever Contact
    says (section 8.1.2)."""

    def __init__(
        self, target: SipUri, local: tuple[str, int], *, transport: str, token: Callable[[], str], caller: str
    ) -> None:
        self.call_id = token()
        self.tag = token()
        self.contact = f"<{SipUri(caller, *local, parameters=(('transport', 'tcp'),) if transport == 'TCP' else ())}>"
        self._target = target
        self._local = SipUri(caller, local[0], local[1])
        self._transport = transport
        self._token = token
        self._to = self.invited = f"<{SipUri(target.user, target.host, target.port)}>"
        self.remote_target = str(target)
        self._route: Sequence[str] = ()
        self._cseq = 0

    def next_number(self) -> int:
        self._cseq += 1
        return self._cseq

    def branch(self) -> str:
        return "z9hG4bK" + self._token()

    def via(self, branch: str) -> str:
        host = f"[{self._local.host}]" if ":" in self._local.host else self._local.host
        return f"SIP/2.0/{self._transport} {host}:{self._local.port};branch={branch};rport"

    def take(self, message: SipMessage) -> None:
        """Of a response that makes the dialog, or made it early."""
        self._to = message.first("to")
        self._route = message.all("record-route")[::-1]
        self.move(message, bare=True)

    def move(self, message: SipMessage, *, bare: bool = False) -> None:
        """Where the other end is now."""
        contact = message.first("contact")
        found = contact.partition("<")[2].partition(">")[0] or (contact.partition(";")[0] if bare else "")
        self.remote_target = found or self.remote_target

    def request(
        self,
        method: str,
        number: int,
        via: str,
        headers: Sequence[tuple[str, str]] = (),
        body: str = "",
        content_type: str = "",
        *,
        to: str | None = None,
    ) -> bytes:
        """In the dialog; with another ``to`` of the call's first INVITE, which goes to the address dialled."""
        common = [
            ("Via", via),
            ("Max-Forwards", "70"),
            *(("Route", hop) for hop in (self._route if to is None else ())),
            ("From", f"<{SipUri(self._local.user, self._local.host)}>;tag={self.tag}"),
            ("To", to or self._to),
            ("Call-ID", self.call_id),
            ("CSeq", f"{number} {method}"),
            ("User-Agent", _AGENT),
        ]
        target = self.remote_target if to is None else str(self._target)
        return serialise(f"{method} {target} SIP/2.0", [*common, *headers], body, content_type)
