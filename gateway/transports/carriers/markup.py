"""The XML that carriers are answered with."""

from __future__ import annotations

from xml.sax.saxutils import escape

XML = "text/xml"


def xml(inner: str) -> bytes:
    """A whole document: its values are escaped already."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{inner}</Response>\n'.encode()


def dial(target: str) -> str:
    """The verb that hands the caller to a number or a SIP URI, as Twilio and Telnyx spell it."""
    if target.startswith(("sip:", "sips:")):
        return f"<Dial><Sip>{escape(target)}</Sip></Dial>"
    return f"<Dial>{escape(target)}</Dial>"
