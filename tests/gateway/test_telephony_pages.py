"""What integrators paste: the settings of docs/telephony are settings of the gateway, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.agents.agent import check_agents_known
from gateway.settings import load_settings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "telephony.md", *sorted((DOCS / "telephony").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_page_shows_settings_that_there_are(block: str, tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text(block, "utf-8")
    check_agents_known(load_settings(file=file, environ={}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_what_there_is(page: Path) -> None:
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), path
        if heading:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, heading


def test_there_are_pages() -> None:
    assert len(BLOCKS) >= 5
