"""The XML that carriers are answered with."""

from __future__ import annotations

XML = "text/xml"


def xml(inner: str) -> bytes:
    """A whole document: its values are escaped already."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{inner}</Response>\n'.encode()
