"""HTML and SVG that cannot be broken out of: every text is escaped as it becomes part of a page.

A server under test says what it likes in its errors, its ids and its code words, and all of it ends in the report.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

LONGEST_TEXT = 400
"""Characters of one text of a server's; the rest is left out."""

_VOID_TAGS = frozenset({"meta", "link", "br", "hr", "col", "img", "input"})
_NAME = re.compile(r"[a-z][a-zA-Z0-9:-]*")
# Controls, lone surrogates, and what reorders or hides the text around it; tab and newline stay.
_UNWELCOME = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Content = Markup | str | int | None
"""None is nothing."""

Attribute = str | int | float | bool | None
"""True: there, without a value. False and None: not there. Numbers are written with at most two decimals."""


def escape(text: str) -> Markup:
    """For a text or an attribute in double quotes. Characters that would reorder a line or hide in it are replaced."""
    return Markup(html.escape(_UNWELCOME.sub("\N{REPLACEMENT CHARACTER}", text), quote=True))


def join(parts: Iterable[Content]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(_text(part)) for part in parts))


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """One element. Of attribute names a closing ``_`` is dropped (``class_``) and the others become ``-``.
    Raises :class:`ValueError` for names that are none, and for content in an element that has none."""
    written = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(attribute) or attribute.startswith("on") or attribute == "style":
            raise ValueError(f"no attribute of ours: {attribute!r}")
        if value is True:
            written.append(attribute)
        elif value is not None and value is not False:
            written.append(f'{attribute}="{escape(value if isinstance(value, str) else number(value))}"')
    if not _NAME.fullmatch(name):
        raise ValueError(f"no element: {name!r}")
    opened = Markup(f"<{' '.join(written)}>")
    if name in _VOID_TAGS:
        if content:
            raise ValueError(f"{name} has no content")
        return opened
    return Markup(f"{opened}{join(content)}</{name}>")


def words(text: str | None) -> Markup:
    """What somebody else wrote: cut, and kept from changing the direction of the words around it."""
    if text is None:
        return Markup("")
    shown = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
    return tag("bdi", shown, class_="words")


def number(value: float) -> str:
    """At most two decimals, no needless zeros: 12.50 is "12.5"."""
    written = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if written in ("-0", "") else written


def _text(part: Content) -> str:
    return "" if part is None else str(part)
