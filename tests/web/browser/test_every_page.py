"""Every page, full and empty, in both themes and both widths: for everyone, and without a surprise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from dray import Access
from dray.app_interface import core_of
from dray.backends.store.jobs import JobStore
from dray.web.dashboard import Dashboard
from dray.web.guard import own_hosts
from dray.web.link import Link
from dray.web.login import Login
from dray.web.pages import POSTS
from dray.web.site import Site
from tests.web.browser.chrome import (
    Served,
    Theme,
    Visitor,
    needs_chromium,
    overflow,
    pages_of,
    served,
    serving,
    violations,
)
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
    paths = pages_of(shown.paths)

    for path in paths:
        visitor.go(page, path)
        wrong += [f"{path}: {each}" for each in looked_at(page)]

    visitor.close()
    with capsys.disabled():
        print(f"\n{len(paths)} pages, {filling}: 4 looks each in {time.monotonic() - began:.1f} s")
    assert wrong + visitor.wrong == []


def looked_at(page: Page) -> list[str]:
    """What is wrong with a page, in each theme and width."""
    wrong = list[str]()
    if (headings := page.locator("h1").count()) != 1:
        wrong.append(f"{headings} h1")
    looks = [*LOOKS.items()]
    if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"):  # it was loaded as the last page was left
        looks.reverse()
    for (theme, width), rules in looks:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        sideways = [f"sideways: {each}" for each in overflow(page)]
        wrong += [f"{theme} {width}: {each}" for each in violations(page, **rules) + sideways]
    return wrong


@pytest.fixture
def looked(browser: Browser) -> Generator[Callable[[Served], Looker]]:
    """Makes visitors who look at single pages; in the end nothing may have been wrong with any."""
    made = list[Looker]()

    def make(site: Served) -> Looker:
        made.append(Looker(Visitor(browser, site)))
        return made[-1]

    yield make
    wrong = [each for looker in made for each in [*looker.wrong, *looker.visitor.wrong]]
    for looker in made:
        looker.visitor.close()
    assert wrong == []


class Looker:
    def __init__(self, visitor: Visitor) -> None:
        visitor.checks_accessibility()
        self.visitor = visitor
        self.page = visitor.context.new_page()
        self.wrong: list[str] = []

    def at(self, path: str, status: int = 200) -> None:
        self.visitor.expected.add(status)
        self.visitor.go(self.page, path, status)
        self.here(path)

    def here(self, name: str) -> None:
        self.wrong += [f"{name}: {each}" for each in looked_at(self.page)]


def test_pages_that_say_no_are_accessible(full: Shown, looked: Callable[[Served], Looker]) -> None:
    looker = looked(full.served)
    looker.at("/nowhere", 404)
    looker.at("/jobs?q=bogus:1", 400)
    with served(full.app, "viewer") as viewers:
        viewer = looked(viewers)
        viewer.at("/tasks/mail.send/enqueue", 403)
        viewer.visitor.close()


def test_the_login_is_accessible(full: Shown, looked: Callable[[Served], Looker]) -> None:
    login = Login(Access("admin", "ann"), 1, token="correct horse battery", link=Link.new(), tell=lambda _: None)
    site = Site(core_of(full.app), login.access, hosts=own_hosts(["localhost"]), login=login)
    with serving(Dashboard(site)) as shown:
        looker = looked(shown)
        looker.at("/login")
        looker.at("/login?code=wrong", 403)
        looker.visitor.close()


def test_revealed_arguments_and_a_form_with_an_error_are_accessible(
    full: Shown, looked: Callable[[Served], Looker]
) -> None:
    @full.app.task(name="card.charge", queue="cards", redact=["card"])
    def charge(card: str, cents: int = 1) -> None: ...

    looker = looked(full.served)
    looker.visitor.go(looker.page, f"/jobs/{charge.enqueue('4111 1111').id}")
    press(looker.page, "$=/reveal")
    looker.page.get_by_text("4111 1111").first.wait_for()
    looker.here("revealed arguments")

    looker.visitor.expected.add(422)
    looker.visitor.go(looker.page, "/tasks/card.charge/enqueue")
    looker.page.locator("[name='arg:cents']").fill("many")
    with looker.page.expect_navigation() as sent:
        looker.page.locator("form[method=post] button.main").click()
    assert sent.value.status == 422
    looker.here("a form with an error")


def test_a_bulk_action_is_accessible_and_comes_to_its_end_by_itself(
    full: Shown, looked: Callable[[Served], Looker], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, cancel = threading.Event(), threading.Event(), JobStore.cancel

    def slowly(*args: Any, **named: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return cancel(*args, **named)

    monkeypatch.setattr(JobStore, "cancel", slowly)
    for n in range(3):
        full.app.enqueue("mail.send", {"n": n}, queue="many")
    looker = looked(full.served)
    looker.at("/bulk", 400)
    looker.at("/bulk?verb=cancel&all=1&q=queue:many")
    press(looker.page, "=/bulk/cancel")
    looker.page.wait_for_url("**/bulk/*-*")
    assert began.wait(20)
    looker.here("a bulk action under way")
    where = urlsplit(looker.page.url).path
    with served(full.app) as another:  # as another process of the server
        elsewhere = looked(another)
        elsewhere.at(where)
        elsewhere.visitor.close()  # before its server ends: the page would say that it cannot reach it

    looker.page.evaluate("window.isTheSame = true")
    go_on.set()
    expect(looker.page.locator("h1")).to_have_text("Done", timeout=20_000)
    assert looker.page.evaluate("window.isTheSame"), "the page was loaded again"
    looker.here("a bulk action that has ended")


def test_every_page_can_be_read_without_a_script(browser: Browser, full: Shown) -> None:
    plain = Visitor(browser, full.served, java_script_enabled=False)
    page, wrong = plain.context.new_page(), list[str]()

    for path in pages_of(full.paths):
        plain.go(page, path)
        wrong += [] if page.locator("main h1").inner_text().strip() else [path]
        # What only a script can do is not offered.
        wrong += [f"{path}: {each}" for each in page.locator("[data-pause]:visible, [data-live]:visible").all()]

    plain.close()
    assert wrong + plain.wrong == []


def test_every_kind_of_action_can_be_done_without_a_script(browser: Browser, full: Shown) -> None:
    app, backend = full.app, core_of(full.app).backend
    assert full.seed is not None

    @app.task(name="card.pay", queue="pressed", redact=["card"])
    def pay(card: str) -> None: ...

    job, flow = pay.enqueue("4111 1111"), app.workflow("pressed")
    flow.add(pay, "4111")
    run, broken, running = flow.enqueue(), full.seed.workflows[1], full.seed.jobs["running"]
    app.schedule("pressed", "mail.send", every=3600)
    # The action, the page that has its button, and the verb that is then in Actions.
    steps: list[tuple[str, str, str | None]] = [
        ("/jobs/{id}/reveal", f"/jobs/{job.id}", "reveal"),
        ("/jobs/{id}/cancel", f"/jobs/{job.id}", "cancel"),
        ("/jobs/{id}/retry", f"/jobs/{job.id}", "retry"),
        ("/jobs/{id}/delete", f"/jobs/{job.id}", "delete"),
        ("/jobs/{id}/ask", f"/jobs/{running}", None),
        ("/queues/{name}/pause", "/queues/pressed", "pause"),
        ("/queues/{name}/resume", "/queues/pressed", "resume"),
        ("/workflows/{id}/cancel", f"/workflows/{run.id}", "cancel"),
        ("/workflows/{id}/retry", f"/workflows/{broken}", "retry"),
        ("/schedules/{name}/run", "/schedules/pressed", "run"),
        ("/schedules/{name}/pause", "/schedules/pressed", "pause"),
        ("/schedules/{name}/resume", "/schedules/pressed", "resume"),
        ("/schedules/{name}/remove", "/schedules/pressed", "remove"),
        ("/tasks/{name}/enqueue", "/tasks/mail.send/enqueue", "enqueue"),
        ("/system/prune", "/system", "prune"),
    ]
    assert {action for action, _, _ in steps} == {post.path for post in POSTS if not post.path.startswith("/bulk")}
    plain = Visitor(browser, full.served, java_script_enabled=False)
    page, before = plain.context.new_page(), backend.actions.newest(1)[0].id

    for action, path, verb in steps:
        if action == "/jobs/{id}/delete":
            app.job(job.id).cancel()  # it was started over
        plain.go(page, path)
        with page.expect_navigation():
            press(page, f"$=/{action.rpartition('/')[2]}")
        shown = page.locator("main").inner_text()
        newest = backend.actions.newest(1)[0]
        assert verb is None or (newest.verb, newest.who, newest.id > before) == (verb, "ann", True), (action, shown)
        before = newest.id

    plain.close()
    assert plain.wrong == []


def test_a_bulk_action_comes_to_its_end_without_a_script(browser: Browser, full: Shown) -> None:
    for n in range(3):
        full.app.enqueue("mail.send", {"n": n}, queue="plain")
    plain = Visitor(browser, full.served, java_script_enabled=False)
    page = plain.open("/bulk?verb=cancel&all=1&q=queue:plain")

    press(page, "=/bulk/cancel")

    expect(page.locator("h1")).to_have_text("Done", timeout=20_000)
    expect(page.locator("main")).to_contain_text("3 cancelled")
    plain.close()
    assert plain.wrong == []


def press(page: Page, action: str) -> None:
    """Presses a button that acts (`=/system/prune`, `$=/retry`); opens the question it is in, if it asks first."""
    operator, _, end = action.partition("=")
    form = page.locator(f"main form[action{operator}='{end}']").first
    if form.locator("xpath=parent::details").count():
        form.locator("xpath=parent::details/summary").click()
    form.locator("button:not([type=button])").first.click()
