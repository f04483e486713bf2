"""One browser a module, a fresh profile a test; a test fails for whatever the page's console calls an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.browser_rig import BrowserPage, Chromium, chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("microphone")) as browser:
        yield browser


@pytest.fixture
def caller(browser: Chromium) -> Iterator[BrowserPage]:
    caller = browser.page(viewport={"width": 1280, "height": 800})
    yield caller
    caller.page.context.close()
    assert caller.faults == []
