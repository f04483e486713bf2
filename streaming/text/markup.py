"""Takes Markdown, HTML tags and emoji out of a text, keeping for every character left where it came from.

Works on a fragment: a fence, emphasis or link whose other half is in another segment is taken out as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import msgspec


class Mapped(msgspec.Struct, frozen=True):
    """``origins[i]`` is the index in the raw text that character ``i`` of ``text`` came from; never falling."""

    text: str
    origins: list[int]


_Edit = tuple[int, int, str]
"""Replace [start, end) by a text; its characters all come from ``start``."""

_FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*$", re.MULTILINE)
_RULE_LINE = re.compile(
    r"^[ \t]*(?:(?:[-*_][ \t]*){3,}|\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?)$", re.MULTILINE
)
_LINE_MARK = re.compile(r"^[ \t]*(?:>[ \t]?)*(?:#{1,6}[ \t]+|[-*+•◦▪][ \t]+(?:\[[ xX]\][ \t]+)?|>[ \t]?)", re.MULTILINE)
_HARD_BREAK = re.compile(r"\n(?=[ \t]*(?:>[ \t]?)*(?:#{1,6}[ \t]|[-*+•◦▪][ \t]|\d{1,3}[.)][ \t]|\|))")
_HEADING_END = re.compile(r"[ \t]#+[ \t]*(?=\v?$)", re.MULTILINE)
_TABLE_EDGE = re.compile(r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*(?=\v?$)", re.MULTILINE)
_TABLE_CELL = re.compile(r"[ \t]*\|[ \t]*")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]*\]")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)?[^\s<>]+[@.:][^\s<>]+)>")
_HTML_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,100}>|<!--.*?-->", re.DOTALL)
_ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|nbsp|#39);")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": " ", "#39": "'"}
_CODE_TICKS = re.compile(r"```[\w+-]*(?=\n)|`+")
_EMPHASIS = re.compile(r"\*\*+|__+|~~+|(?<![\w*])\*(?=\S)|(?<=[^\s*])\*(?![\w*])|(?<!\w)_(?=\S)|(?<=[^\s_])_(?!\w)")
_ESCAPE = re.compile(r"\\(?=[\\`*_{}\[\]()#+\-.!|~>$])")
_LINE_BREAK = re.compile(r"[ \t\v]*\n\s*")
_KEPT_SYMBOLS = frozenset("°")
_JOINERS = frozenset("\u200c\u200d")


def strip_markup(raw: str) -> Mapped:
    """The words of ``raw`` without what only formats them. Lines become sentences where a list, a heading or a table
    ended them without a stop."""
    mapped = Mapped(raw, list(range(len(raw))))
    for step in _STEPS:
        mapped = step(mapped)
    return mapped


def _apply(mapped: Mapped, edits: list[_Edit]) -> Mapped:
    if not edits:
        return mapped
    text: list[str] = []
    origins: list[int] = []
    at = 0
    for start, end, new in edits:
        text += (mapped.text[at:start], new)
        origins += mapped.origins[at:start]
        origins += [mapped.origins[start]] * len(new)
        at = end
    text.append(mapped.text[at:])
    origins += mapped.origins[at:]
    return Mapped("".join(text), origins)


def _replace(pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str]) -> Callable[[Mapped], Mapped]:
    def step(mapped: Mapped) -> Mapped:
        edits = [
            (found.start(), found.end(), new if isinstance(new, str) else new(found))
            for found in pattern.finditer(mapped.text)
            if found.start() < found.end()
        ]
        return _apply(mapped, edits)

    return step


def _keep_group(pattern: re.Pattern[str]) -> Callable[[Mapped], Mapped]:
    """Leave only group 1 of each match, with its own origins."""

    def step(mapped: Mapped) -> Mapped:
        edits: list[_Edit] = []
        for found in pattern.finditer(mapped.text):
            edits += [(found.start(), found.start(1), ""), (found.end(1), found.end(), "")]
        return _apply(mapped, edits)

    return step


def _table_cells(mapped: Mapped) -> Mapped:
    """Cells are read as a list; "a | b" alone as well."""
    return _replace(_TABLE_CELL, ", ")(_replace(_TABLE_EDGE, "")(mapped)) if "|" in mapped.text else mapped


def _join_lines(mapped: Mapped) -> Mapped:
    """One line: a wrapped line goes on, any other ends its sentence."""
    edits: list[_Edit] = []
    for found in _LINE_BREAK.finditer(mapped.text):
        before = mapped.text[: found.start()].rstrip("\"'”’)*_ ")[-1:]
        after = mapped.text[found.end() : found.end() + 1]
        goes_on = (
            not before
            or not after
            or before in ".,;:!?…。！？।，：；-—"
            or (after.islower() and "\v" not in found.group())
        )
        edits.append((found.start(), found.end(), " " if goes_on else ". "))
    return _apply(mapped, edits)


def _drop_pictures(mapped: Mapped) -> Mapped:
    edits: list[_Edit] = []
    for at, char in enumerate(mapped.text):
        if char in _KEPT_SYMBOLS or char.isascii():
            continue
        category = unicodedata.category(char)
        if char in _JOINERS:
            picture = unicodedata.category(mapped.text[at - 1 : at] or " ")[0] not in "LM"
        else:
            variation = "\ufe00" <= char <= "\ufe0f"
            picture = category in ("So", "Sk", "Cf", "Co", "Cs", "Cn", "Me") or variation
        if picture:
            edits.append((at, at + 1, " " if category == "So" else ""))
    return _apply(mapped, edits)


_STEPS: tuple[Callable[[Mapped], Mapped], ...] = (
    _replace(_FENCE_LINE, ""),
    _replace(_RULE_LINE, ""),
    _replace(_CODE_TICKS, ""),
    _replace(_HARD_BREAK, "\v\n"),
    _replace(_LINE_MARK, ""),
    _replace(_HEADING_END, ""),
    _replace(_FOOTNOTE, ""),
    _keep_group(_LINK),
    _keep_group(_AUTOLINK),
    _replace(_HTML_TAG, " "),
    _replace(_ENTITY, lambda found: _ENTITIES[found.group(1)]),
    _table_cells,
    _replace(_ESCAPE, ""),
    _replace(_EMPHASIS, ""),
    _join_lines,
    _drop_pictures,
)
