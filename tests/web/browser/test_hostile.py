"""Hostile values in every text field: nothing runs, nothing breaks the page, nothing leaves it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from tests.web import hostile
from tests.web.browser.chrome import Visitor, needs_chromium, overflow, pages_of
from tests.web.browser.conftest import Shown

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def planted(full: Shown) -> list[str]:
    """All pages, and those of the hostile jobs."""
    assert full.seed is not None
    jobs = hostile.plant(full.seed.path)
    run = hostile.wide_workflow(full.app, 10_000)
    return [*full.paths, *jobs, f"/workflows/{run}"]


def test_nothing_runs_breaks_the_layout_or_leaves_the_page(browser: Browser, full: Shown, planted: list[str]) -> None:
    visitor = Visitor(browser, full.served, width=390)
    page, wrong = visitor.context.new_page(), list[str]()

    for path in pages_of(planted):
        visitor.go(page, path)
        wrong += [f"{path}: {each}" for each in broken(page)]

    visitor.close()
    assert wrong + visitor.wrong == []


def broken(page: Page) -> list[str]:
    """What a value has done to the page."""
    found = [f"sideways: {each}" for each in overflow(page)]
    # One frame, the menu and the search as they are everywhere, and no element that only a value can have made.
    if not page.evaluate(
        "!!document.querySelector('body > .frame > div > main#main') && !!document.querySelector('nav')"
    ):
        found.append("the frame is broken")
    found += page.evaluate(
        """() => [...document.querySelectorAll("main script, main img, main style, main foreignObject, main [hx-get],"
            + "main [data-hx-get], main [onclick], main [onerror], main [onload], main [onfocus], main [style],"
            + "main a[href^='javascript:'], main b[hx-trigger]")].map(each => each.outerHTML.slice(0, 100))"""
    )
    text = page.evaluate("document.querySelector('main').textContent")
    found += [f"a character as it is: {each!r}" for each in "\x1b\x08\x9b\u202e\u2066\u200f\u061c" if each in text]
    if "9007199254740992" in text:
        found.append("2^53 + 1 was rounded")
    if page.evaluate("document.documentElement.outerHTML.length") > 4_000_000:
        found.append("more than 4 MB")
    return found


def test_a_hostile_page_that_is_morphed_stays_harmless(browser: Browser, full: Shown, planted: list[str]) -> None:
    visitor = Visitor(browser, full.served)
    page = visitor.context.new_page()
    for path in ("/jobs", planted[-2]):
        visitor.go(page, path)
        with page.expect_response(lambda answer, path=path: answer.url.endswith(path), timeout=10_000):
            full.app.queue("morphed", priority=len(path))
            full.app.enqueue("mail.send", {"n": 1})
        page.wait_for_timeout(100)
        assert broken(page) == []
    visitor.close()
    assert visitor.wrong == []
