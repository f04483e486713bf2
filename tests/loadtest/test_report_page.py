"""The report in a real browser, from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from loadtest.html_report import to_html
from tests.loadtest import sample_reports as samples
from tests.web.page_rig import CHROMIUM, FLAGS, needs_chromium

pytestmark = [pytest.mark.e2e, needs_chromium]

WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "large.html").write_text(to_html(samples.large(folder), folder), "utf-8")
    for name in ("smoke", "void", "interrupted", "hostile"):
        (folder / f"{name}.html").write_text(to_html(getattr(samples, name)(), None), "utf-8")
    return folder


class Opened:
    """A page, everything it asked for and everything it complained of."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._complain)
        self.page.goto(path.as_uri())

    def _complain(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def point_at(self, selector: str, number: int) -> None:
        """Scrolls there first, and lets the page know: what is shown at a pointer goes when the page moves."""
        there = self.page.locator(selector).nth(number)
        there.scroll_into_view_if_needed()
        self.page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
        there.hover()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url[:60] for url in self.requests[1:] if not url.startswith("data:")] == []


@pytest.mark.parametrize("name", ["large", "smoke", "void", "interrupted", "hostile"])
@pytest.mark.parametrize("javascript", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_opens_from_disk_and_fits(
    browser: Browser, folder: Path, name: str, javascript: bool, viewport: dict[str, int]
) -> None:
    with Opened(browser, folder / f"{name}.html", viewport=viewport, java_script_enabled=javascript) as opened:
        expect(opened.page.locator("h1")).to_be_visible()
        if javascript:
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_without_a_script_all_is_there(browser: Browser, folder: Path) -> None:
    with Opened(browser, folder / "large.html", viewport=WIDE, java_script_enabled=False) as opened:
        page = opened.page
        for name in ("baseline", "latency", "capacity", "time", "quality", "calls", "machines", "soak", "definitions"):
            expect(page.locator(f"#{name}")).to_be_visible()
        expect(page.locator("svg .hits title").first).to_have_count(1)
        page.locator(".call").nth(5).locator("summary").first.click()
        expect(page.locator(".call").nth(5).locator("audio")).to_be_visible()


def test_a_pointer_finds_the_numbers(browser: Browser, folder: Path) -> None:
    with Opened(browser, folder / "large.html", viewport=WIDE) as opened:
        page = opened.page
        expect(page.locator(".tip")).to_be_hidden()
        opened.point_at("#time svg .hits rect", 60)
        expect(page.locator(".tip")).to_have_text("5:00\nUp: 100")
        assert page.locator(".pointer").count() == 1
        page.keyboard.press("Escape")
        expect(page.locator(".tip")).to_be_hidden()
        opened.point_at(".cells rect", 3)
        expect(page.locator(".tip")).to_contain_text("ms: ")


def test_a_call_plays_along_its_picture_and_only_one_at_a_time(browser: Browser, folder: Path) -> None:
    with Opened(browser, folder / "large.html", viewport=WIDE) as opened:
        page = opened.page
        first, second = page.locator(".call").nth(0), page.locator(".call").nth(1)
        first.locator("svg.sound").click(position={"x": 300, "y": 20})
        expect(first.locator(".playhead")).to_have_count(1)
        page.wait_for_function("() => document.querySelector('.call audio').currentTime > 1")
        length = page.evaluate("document.querySelector('.call audio').duration")
        assert length == pytest.approx(24, abs=0.1)
        second.locator("svg.sound").click(position={"x": 10, "y": 20})
        page.wait_for_function("() => document.querySelector('.call audio').paused")


def test_on_paper_every_call_is_opened(browser: Browser, folder: Path) -> None:
    with Opened(browser, folder / "large.html", viewport=WIDE) as opened:
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.page.locator(".call:not([open])").count() == 0


def test_paper_is_light(browser: Browser, folder: Path) -> None:
    with Opened(browser, folder / "smoke.html", color_scheme="dark") as opened:
        opened.page.emulate_media(media="print", color_scheme="dark")
        assert (
            opened.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
            == "rgb(255, 255, 255)"
        )


def test_the_dark_is_dark(browser: Browser, folder: Path) -> None:
    def brightness(scheme: str) -> int:
        with Opened(browser, folder / "smoke.html", color_scheme=scheme) as opened:
            colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            return sum(int(part) for part in colour.strip("rgb()").split(","))

    assert brightness("dark") < 100 < 600 < brightness("light")
