"""The parts that sections of the report are built of: cards, figures, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtest.markup import Content, Markup, join, tag, words

_MARKS = {"ok": "●", "bad": "■", "warn": "▲", "plain": "○"}
"""Nothing is told by colour alone."""


def pill(text: str, tone: str) -> Markup:
    return tag("span", tag("i", _MARKS[tone], class_="mark", aria_hidden="true"), words(text), class_=f"pill {tone}")


def tone_text(text: str, tone: str) -> Markup:
    mark = tag("i", _MARKS[tone], class_="mark", aria_hidden="true")
    return tag("span", mark, text, class_=f"tone {tone}")


def section(name: str, title: str, *content: Content, note: str = "") -> Markup:
    """A card of its own, with an anchor."""
    head = tag("header", tag("h2", title, id=f"{name}-title"), tag("p", note, class_="muted") if note else None)
    return tag("section", head, *content, class_="card panel", id=name, aria_labelledby=f"{name}-title")


def notice(title: str, lines: Iterable[Content], tone: str = "") -> Markup:
    told = [tag("span", line, class_="line") for line in lines]
    return tag("div", tag("div", tag("strong", title), *told), class_=f"notice {tone}".strip(), role="note")


def figure(
    title: str, plot: Markup, *, legend: Sequence[tuple[str, str]] = (), note: str = "", numbers: Markup | None = None
) -> Markup:
    """A plot, its title, what its curves are, and its numbers as a table behind it."""
    keys = [
        tag("span", tag("i", class_=f"key {tone}", aria_hidden="true"), name, class_="entry") for name, tone in legend
    ]
    caption = tag("figcaption", tag("h3", title), tag("span", *keys, class_="legend") if keys else None)
    behind = (
        tag("details", tag("summary", "Numbers"), numbers, class_="fold numbers-of") if numbers is not None else None
    )
    return tag("figure", caption, tag("div", plot, class_="figure"), behind)


def table(caption: str, heads: Sequence[Content], rows: Iterable[Sequence[Content]], class_: str = "") -> Markup:
    """The first cell of each row names it; None is an empty cell. Scrolls sideways where there is too little room."""
    head = tag("tr", *(tag("th", content, scope="col") for content in heads))
    body = [tag("tr", tag("th", row[0], scope="row"), *(_cell(content) for content in row[1:])) for row in rows]
    drawn = tag("table", tag("caption", caption, class_="visually-hidden"), tag("thead", head), tag("tbody", *body))
    return tag("div", drawn, class_=f"table numbers {class_}".strip(), tabindex=0, role="group", aria_label=caption)


def cell(content: Content, *, bad: bool) -> Content:
    """Marked where it is not as it should be."""
    return tone_text(str(content), "bad") if bad and content is not None else content


def facts(pairs: Iterable[tuple[Content, Content]]) -> Markup:
    """What is None is left out."""
    shown = (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value is not None)
    return tag("dl", join(shown), class_="facts numbers")


def defined(text: str, term: str) -> Markup:
    """A name that leads to its definition further down."""
    return tag("a", text, href=f"#def-{term}", class_="defined")


def _cell(content: Content) -> Markup:
    return tag("td", "–" if content is None else content)
