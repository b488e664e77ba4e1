"""A page that stays open: it shows what happens, and keeps what its visitor is doing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from dray import App
from tests.web.browser.chrome import PATIENCE, Visitor, needs_chromium, served
from tests.web.browser.conftest import Shown

pytestmark = needs_chromium
SEEN = 10_000  # milliseconds in which a change must be seen; a second is usual
_PAUSE = "details:has(form[action='/queues/mail/pause'])"
_HIDE = """is_hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => is_hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def word(page: Page) -> str:
    return page.locator("[data-word]").inner_text()


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


def live(visitor: Visitor, path: str = "/queues") -> Page:
    """A page whose stream is open."""
    with visitor.context.expect_event("response", lambda answer: answer.url.endswith("/events")):
        page = visitor.open(path)
    until(lambda: word(page) == "Live")
    return page


def test_a_change_is_seen_within_a_second_on_both_databases(
    browser: Browser, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second is the aim; a busy machine gets ten."""
    with App(url) as app:
        app.init()
        with served(app) as site:
            visitor, took = Visitor(browser, site), list[float]()
            page = live(visitor)
            for n in range(3):
                began = time.monotonic()
                app.enqueue("mail.send", {}, queue=f"new-{n}")
                expect(page.locator("#main").get_by_text(f"new-{n}", exact=True)).to_be_visible(timeout=SEEN)
                took.append(time.monotonic() - began)
            visitor.close()
    with capsys.disabled():
        print(f"\na change was seen after {', '.join(f'{each:.2f}' for each in took)} s")
    assert visitor.wrong == []
    assert max(took) <= SEEN / 1000


def test_focus_typed_text_and_selection_are_kept(visitor: Visitor, full: Shown) -> None:
    page = live(visitor)
    page.locator("#q").fill("state:failed task:mail")
    page.locator("#q").evaluate("field => field.setSelectionRange(6, 12)")
    button = page.locator(f"{_PAUSE} > summary")

    full.app.queue("typed", priority=0)
    expect(page.locator("#main").get_by_text("typed", exact=True)).to_be_visible(timeout=SEEN)
    assert page.evaluate("[document.activeElement.id, q.value, q.selectionStart, q.selectionEnd]") == [
        *("q", "state:failed task:mail"), 6, 12,
    ]  # fmt: skip

    button.focus()
    full.app.queue("focused", priority=0)
    expect(page.locator("#main").get_by_text("focused", exact=True)).to_be_visible(timeout=SEEN)
    assert button.evaluate("summary => summary === document.activeElement")


def test_ticked_rows_stay_ticked_wherever_they_move(visitor: Visitor, full: Shown) -> None:
    page = live(visitor, "/jobs")
    box = page.locator("table[data-select] input[name=id]").first
    ticked = box.input_value()
    box.check()
    assert page.locator("[data-selected]").first.inner_text() == "1"

    newest = full.app.enqueue("mail.send", {"n": 77})
    expect(page.locator(f"input[name=id][value='{newest.id}']")).to_be_visible(timeout=SEEN)

    chosen = page.locator("table[data-select] input[name=id]:checked")
    assert [each.input_value() for each in chosen.all()] == [ticked]
    page.locator("[data-all]").check()
    assert page.locator("[data-selected]").first.inner_text() == str(page.locator("input[name=id]").count())


def test_what_was_opened_stays_open(visitor: Visitor, full: Shown) -> None:
    assert full.seed is not None
    page = live(visitor, f"/jobs/{full.seed.jobs['running']}")
    # Not a question: those keep the page as it is.
    details = page.locator("#main details:not(.ask)").first
    was_open = details.evaluate("box => box.open")
    details.locator("summary").first.click()

    with page.expect_response(lambda answer: "/jobs/" in answer.url, timeout=SEEN):
        full.app.job(full.seed.jobs["scheduled"]).cancel()
    page.wait_for_timeout(300)

    assert details.evaluate("box => box.open") != was_open


def test_a_page_is_held_while_a_question_is_open(visitor: Visitor, full: Shown) -> None:
    page = live(visitor)
    page.locator(f"{_PAUSE} > summary").click()
    why = page.locator(f"{_PAUSE} input:not([type=hidden])")
    why.fill("double charges")

    full.app.queue("held", priority=0)
    until(lambda: word(page) == "Held")
    assert why.input_value() == "double charges"
    assert page.locator("#main").get_by_text("held", exact=True).count() == 0

    page.keyboard.press("Escape")  # leaves the field
    page.keyboard.press("Escape")
    expect(page.locator("#main").get_by_text("held", exact=True)).to_be_visible(timeout=SEEN)


def test_a_pause_holds_across_pages_and_reconnects(visitor: Visitor, full: Shown) -> None:
    page = live(visitor)
    page.keyboard.press("p")
    assert word(page) == "Paused"
    until(lambda: not full.served.dashboard.site.feed._listeners)

    full.app.queue("paused-1", priority=0)
    page.evaluate(_HIDE, True)
    page.evaluate(_HIDE, False)  # a tab that comes back would connect again
    page.wait_for_timeout(700)
    assert page.locator("#main").get_by_text("paused-1", exact=True).count() == 0

    visitor.go(page, "/jobs")
    visitor.go(page, "/queues")
    assert word(page) == "Paused"
    assert not full.served.dashboard.site.feed._listeners

    full.app.queue("paused-2", priority=0)
    page.locator("[data-pause]").click()
    expect(page.locator("#main").get_by_text("paused-2", exact=True)).to_be_visible(timeout=SEEN)
    assert word(page) == "Live"


def test_a_hidden_tab_lets_its_stream_go(visitor: Visitor, full: Shown) -> None:
    page = live(visitor)
    feed = full.served.dashboard.site.feed
    until(lambda: len(feed._listeners) == 1)

    page.evaluate(_HIDE, True)
    until(lambda: not feed._listeners)
    full.app.queue("while-hidden", priority=0)

    page.evaluate(_HIDE, False)
    expect(page.locator("#main").get_by_text("while-hidden", exact=True)).to_be_visible(timeout=SEEN)


def test_a_page_says_when_the_dashboard_does_not_reply_and_goes_on(
    visitor_with: Callable[..., Visitor], full: Shown
) -> None:
    visitor = visitor_with()
    page = live(visitor)

    page.route("**/queues", lambda route: route.fulfill(status=503, body="The database does not reply."))
    full.app.queue("offline", priority=0)
    until(lambda: word(page) == "Offline")
    page.unroute("**/queues")

    expect(page.locator("#main").get_by_text("offline", exact=True)).to_be_visible(timeout=SEEN)
    until(lambda: word(page) == "Live")


def test_ten_tabs_are_usable_and_all_see_a_change(
    visitor_with: Callable[..., Visitor], full: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    visitor = visitor_with()
    pages = [visitor.open("/queues") for _ in range(10)]

    began = time.monotonic()
    full.app.queue("ten-tabs", priority=0)
    for page in pages:
        expect(page.locator("#main").get_by_text("ten-tabs", exact=True)).to_be_visible(timeout=SEEN)
    took = time.monotonic() - began
    visitor.go(pages[9], "/jobs")

    assert len(full.served.dashboard.site.feed._listeners) <= 4
    assert [each for each in visitor.wrong if "503" not in each] == []  # the tabs that have to ask
    with capsys.disabled():
        print(f"\nten tabs saw a change within {took:.1f} s")
    assert took < 50, "those without a stream ask every 5 seconds"


# Times, colours, keys


def test_times_are_local(visitor_with: Callable[..., Visitor]) -> None:
    visitor = visitor_with(timezone_id="Asia/Tokyo")
    page = visitor.open("/jobs")
    page.keyboard.press("p")  # it would take away what is put into it here
    page.evaluate(
        """() => {
            const made = [["clock", "2026-11-17T20:15:30.000Z"], ["date", "2020-01-02T20:15:30.000Z"]];
            made.push(["ago", new Date(Date.now() - 125000).toISOString()]);
            document.querySelector("#main h1").innerHTML = made.map(([show, at]) =>
                `<time id="t-${show}" datetime="${at}" data-show="${show}">in UTC</time>`).join(" ");
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )

    assert page.locator("#t-clock").inner_text() == "05:15:30"
    assert page.locator("#t-date").inner_text() == "3 Jan 2020, 05:15:30"
    assert page.locator("#t-ago").inner_text().startswith("2m0")
    assert visitor.wrong == []


def test_colours_are_chosen_and_kept(visitor: Visitor) -> None:
    page = visitor.open("/queues")
    theme = "document.documentElement.dataset.theme ?? 'system'"
    seen = [page.evaluate(theme)]
    for _ in range(2):
        page.keyboard.press("t")
        seen.append(page.evaluate(theme))
    assert seen == ["system", "light", "dark"]

    visitor.go(page, "/jobs")
    assert page.evaluate(theme) == "dark"
    page.locator("[data-theme-button]").click()
    assert page.evaluate(theme) == "system"


def test_keys_go_to_pages_rows_and_buttons_but_not_while_typing(visitor: Visitor) -> None:
    page = visitor.open("/queues")
    page.keyboard.press("/")
    page.keyboard.type("tgj?")  # into the field
    assert page.locator("#q").input_value() == "tgj?"
    page.keyboard.press("Escape")

    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()

    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("x")
    first = page.locator("[data-row]").first
    assert first.locator("input[name=id]").is_checked()
    assert first.evaluate("row => row.contains(document.activeElement)")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*-*")


def test_a_button_copies(visitor: Visitor, full: Shown) -> None:
    assert full.seed is not None
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.open(f"/jobs/{full.seed.jobs['failed']}")

    page.locator("[data-copy]").first.click()

    expect(page.locator("[data-tell]")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == full.seed.jobs["failed"]
