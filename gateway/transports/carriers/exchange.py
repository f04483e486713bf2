"""What a telephone exchange is, and a carrier is not: it dials the stream itself, and asks nothing before."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.transports.carriers.dialect import Asked, BadWebhook, Reply, RestRequest, StreamTo
from gateway.transports.carriers.signatures import invalid
from gateway.transports.phone.line import Incoming

NOT_FOUND = Reply(b"", "text/plain", status=404)


class Exchange:
    """The half of :class:`gateway.transports.carriers.dialect.Carrier` that follows from that."""

    signs_upgrade = True
    api_url = ""

    def check_webhook(self, asked: Asked) -> None:
        raise invalid()

    def read_webhook(self, asked: Asked) -> Incoming | None:
        raise BadWebhook("an exchange has no webhooks")

    def connect(self, asked: Asked, to: StreamTo) -> Reply:
        return NOT_FOUND

    def refuse(self, asked: Asked, *, busy: bool) -> Reply:
        return NOT_FOUND

    def api_headers(self, request: RestRequest) -> Mapping[str, str]:
        return {}
