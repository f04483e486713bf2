"""docs/operations.md names what is counted of phones, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "\n".join(
    path.read_text("utf-8") for package in ("gateway", "streaming") for path in (ROOT / package).rglob("*.py")
)
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
ASTERISK = (ROOT / "docs" / "telephony" / "asterisk.md").read_text("utf-8")
PHONES = re.compile(r"(?:sip|carrier|audiosocket|line|control|outbound)_")


def section(heading: str) -> str:
    return PAGE.partition(f"\n{heading}\n")[2].partition("\n#")[0]


def written_out(text: str) -> set[str]:
    """`sip_a`, `_b` is sip_a and, said shorter, another one: the latter is not looked for."""
    return {name for name in re.findall(r"`([a-z_]+)`", text) if not name.startswith("_")}


def test_what_the_page_names_is_counted() -> None:
    names = {name for name in written_out(section("### What is counted")) if not name.startswith(("offhook_", "tool_"))}
    assert len(names) > 40
    assert {
        name for name in names if f'"{name}"' not in SOURCE and f'"{name.removeprefix("carrier_")}"' not in SOURCE
    } == set()


def test_what_is_counted_of_phones_is_named() -> None:
    counted = {name for name in re.findall(r'count\("([a-z_]+)"', SOURCE) if PHONES.match(name)}
    assert len(counted) > 30
    assert counted - written_out(PAGE) - written_out(ASTERISK) == set()


def test_the_causes_that_the_page_names_are_causes() -> None:
    causes = written_out(re.sub(r"\|[^|]*\|$", "", section("### How phone calls end"), flags=re.MULTILINE))
    assert len(causes) > 15
    assert {cause for cause in causes if f'"{cause}"' not in SOURCE} == set()
