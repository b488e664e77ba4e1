"""Every page, full and empty, in both themes and both widths: for everyone, and without a surprise."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser, Page

from tests.web.browser.chrome import Theme, Visitor, needs_chromium, overflow, violations
from tests.web.browser.conftest import Shown

pytestmark = needs_chromium
# The rule about colours takes half the time: it need not be asked of a narrow page in both themes. And what is not
# about colours is the same in the other theme.
COLOURS = ["color-contrast", "link-in-text-block"]
LOOKS: dict[tuple[Theme, int], dict[str, list[str]]] = {
    ("light", 1440): {},
    ("light", 390): {"but": COLOURS},
    ("dark", 390): {"only": COLOURS},
    ("dark", 1440): {"only": COLOURS},
}


@pytest.mark.parametrize("filling", ["full", "empty"])
def test_every_page_is_accessible_in_both_themes_and_widths(
    filling: str, browser: Browser, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: Shown = request.getfixturevalue(filling)
    visitor = Visitor(browser, shown.served)
    visitor.checks_accessibility()
    page, wrong, began = visitor.context.new_page(), list[str](), time.monotonic()
    paths = visitor.pages(shown.paths)
    has_seen_menu = False  # the menu and the search are the same on all pages

    for path in paths:
        visitor.go(page, path)
        wrong += [f"{path}: {each}" for each in looked_at(page, "#main" if has_seen_menu else "html")]
        has_seen_menu = True

    visitor.close()
    with capsys.disabled():
        print(f"\n{len(paths)} pages, {filling}: 4 looks each in {time.monotonic() - began:.1f} s")
    assert wrong + visitor.wrong == []


def looked_at(page: Page, part: str) -> list[str]:
    """What is wrong with a page or a part of it, in each theme and width."""
    wrong = list[str]()
    if (headings := page.locator("h1").count()) != 1:
        wrong.append(f"{headings} h1")
    for (theme, width), rules in LOOKS.items():
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        sideways = [f"sideways: {each}" for each in overflow(page)]
        wrong += [f"{theme} {width}: {each}" for each in violations(page, part, **rules) + sideways]
    return wrong


def test_every_page_can_be_read_without_a_script(browser: Browser, full: Shown) -> None:
    plain = Visitor(browser, full.served, java_script_enabled=False)
    page, wrong = plain.context.new_page(), list[str]()

    for path in plain.pages(full.paths):
        plain.go(page, path)
        wrong += [] if page.locator("main h1").inner_text().strip() else [path]
        # What only a script can do is not offered.
        wrong += [f"{path}: {each}" for each in page.locator("[data-pause]:visible, [data-live]:visible").all()]

    plain.close()
    assert wrong + plain.wrong == []


def test_single_actions_work_without_a_script(browser: Browser, full: Shown) -> None:
    plain = Visitor(browser, full.served, java_script_enabled=False)
    page = plain.open("/queues")

    press(page, "/queues/reports/pause")
    assert full.app.queue("reports").is_paused
    page.locator(".said").wait_for()

    assert full.seed is not None
    job = full.seed.sql("SELECT id FROM dray_jobs WHERE task = 'push.notify' AND state = 'failed' LIMIT 1")[0][0]
    plain.go(page, f"/jobs/{job}")
    press(page, f"/jobs/{job}/retry")
    assert full.app.job(job).state != "failed"

    full.app.resume("reports")
    plain.close()
    assert plain.wrong == []


def press(page: Page, action: str) -> None:
    """Presses a button that acts; opens the question it is in, if it asks first."""
    form = page.locator(f"form[action='{action}']").first
    if form.locator("xpath=parent::details").count():
        form.locator("xpath=parent::details/summary").click()
    form.locator("button").first.click()
