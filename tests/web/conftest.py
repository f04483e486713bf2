"""One browser a module, a fresh profile a test; a test fails for whatever the page's console calls an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.page_rig import Rig, chromium
from tests.web.page_rig import rig as open_rig


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def rig(browser: Browser) -> Iterator[Rig]:
    with open_rig(browser, viewport={"width": 1280, "height": 800}) as rig:
        yield rig
        assert rig.faults == []
