"""What integrators paste: the settings of docs/telephony are settings of the gateway."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings import load_settings

PAGES = Path(__file__).parents[2] / "docs" / "telephony"
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted(PAGES.glob("*.md"))
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_page_shows_settings_that_there_are(block: str, tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text(block, "utf-8")
    load_settings(file=file, environ={})


def test_there_are_pages() -> None:
    assert len(BLOCKS) >= 5
