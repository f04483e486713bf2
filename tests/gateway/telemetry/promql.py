"""Enough of PromQL to say that an expression is one: https://prometheus.io/docs/prometheus/latest/querying/basics/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<duration>\d+(?:ms|[smhdwy])|\$__rate_interval)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"|(?P<sign>=~|!~|==|!=|>=|<=|[-+*/%^<>=(){}\[\],]))"
)
_OPERATORS = {"+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}
_SETS = {"and", "or", "unless"}
_AGGREGATES = {"sum", "min", "max", "avg", "count", "topk"}
_OF_RANGES = {"rate", "increase", "changes", "deriv"}
_OF_NUMBERS = {"time": 0, "vector": 1, "absent": 1, "histogram_quantile": 2}


class NotPromQL(ValueError):  # noqa: N818 (what it is)
    """Says where."""


@dataclass(frozen=True)
class Selector:
    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    """(label, =, =~, != or !~, value)."""
    ranged: bool


@dataclass
class Expression:
    """What is named in it. ``labels``: all that it groups or joins by."""

    selectors: list[Selector] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)


def parse(text: str) -> Expression:
    """Raises :class:`NotPromQL`."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self._found = Expression()

    def whole(self) -> Expression:
        self._binary()
        if self._peek() is not None:
            raise self._fail("nothing more")
        return self._found

    # --- grammar: each returns whether it is a range ------------------------------------------------------------

    def _binary(self) -> None:
        self._instant()
        while self._peek() in _OPERATORS:
            operator = self._take()
            if self._peek() in ("on", "ignoring"):
                self._take()
                self._found.labels |= self._labels()
            elif operator not in _SETS and self._peek() == "bool":
                self._take()
            self._instant()

    def _instant(self) -> None:
        if self._term():
            raise self._fail("no range here")

    def _term(self) -> bool:
        token = self._take()
        if token == "(":
            self._binary()
            self._expect(")")
            return False
        if token == "-":
            return self._term()
        if re.fullmatch(r"\d.*", token):
            return False
        if not re.fullmatch(r"[a-zA-Z_:][\w:]*", token):
            raise self._fail("a term", back=True)
        if token in _AGGREGATES:
            self._aggregate(token)
            return False
        if self._peek() == "(":
            self._call(token)
            return False
        return self._selector(token)

    def _aggregate(self, name: str) -> None:
        by: set[str] = set()
        if self._peek() in ("by", "without"):
            self._take()
            by = self._labels()
        self._expect("(")
        if name == "topk":
            self._instant()
            self._expect(",")
        self._binary()
        self._expect(")")
        self._found.labels |= by

    def _call(self, name: str) -> None:
        self._expect("(")
        if name in _OF_RANGES:
            if not self._term():
                raise self._fail(f"a range for {name}")
        elif name in _OF_NUMBERS:
            for number in range(_OF_NUMBERS[name]):
                if number:
                    self._expect(",")
                begun = self._at
                self._binary()
                if name == "histogram_quantile" and number and "le" not in self._tokens[begun : self._at]:
                    raise self._fail("buckets by le")
        else:
            raise self._fail(f"a function that is known, not {name}")
        self._expect(")")

    def _selector(self, metric: str) -> bool:
        matchers: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign, value = self._take(), self._take(), self._take()
                if sign not in ("=", "=~", "!=", "!~") or not value.startswith('"'):
                    raise self._fail("a matcher", back=True)
                if "~" in sign and "$" not in value:
                    re.compile(value[1:-1])
                matchers.append((label, sign, value[1:-1]))
                if self._peek() == ",":
                    self._take()
            self._take()
        ranged = self._peek() == "["
        if ranged:
            self._take()
            if not re.fullmatch(r"\d+[a-z]+|\$__rate_interval", self._take()):
                raise self._fail("a duration", back=True)
            self._expect("]")
        if self._peek() == "offset":
            self._take()
            if not re.fullmatch(r"\d+[a-z]+", self._take()):
                raise self._fail("a duration", back=True)
        self._found.selectors.append(Selector(metric, tuple(matchers), ranged))
        return ranged

    def _labels(self) -> set[str]:
        labels: set[str] = set()
        self._expect("(")
        while self._peek() != ")":
            labels.add(self._take())
            if self._peek() == ",":
                self._take()
        self._take()
        return labels

    # --- tokens -------------------------------------------------------------------------------------------------

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise self._fail("more")
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._fail(token, back=True)

    def _fail(self, wanted: str, *, back: bool = False) -> NotPromQL:
        before = " ".join(self._tokens[: self._at - back])
        return NotPromQL(f"{wanted} is wanted after: {before}")


def _tokens(text: str) -> Iterator[str]:
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotPromQL(f"no token: {text[at:]}")
        at = match.end()
        yield match.group(match.lastgroup or 0)
