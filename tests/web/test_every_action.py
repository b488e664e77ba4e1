"""All actions and all pages there are, each asked in every wrong way."""

from __future__ import annotations

import re
from collections.abc import Callable

from dray import Access, App
from dray.app_interface import core_of
from dray.web import pages
from tests.web.browsing import ORIGIN, Visitor
from tests.web.tables import everything


def used(app: App) -> dict[str, str]:
    """A database in which each path of an action names something. What the parts of paths stand for."""

    @app.task(name="guard.add", queue="mail", max_attempts=1)
    def add(a: int) -> int:
        return a

    app.queue("mail", priority=0)
    app.schedule("nightly", add, args={"a": 1}, cron="0 3 * * *")
    core_of(app).declare_schedules(core_of(app).backend)
    job = add.enqueue(1)
    workflow = app.workflow("etl")
    workflow.add(add, 1)
    run = workflow.enqueue()
    return {"id": job.id, "name": "mail", "workflow": run.id, "task": "guard.add", "key": "0" * 16}


def filled(path: str, given: dict[str, str]) -> str:
    """A path with its parts filled in, by the noun that stands before them."""
    if path.startswith("/schedules"):
        given = {**given, "name": "nightly"}
    if path.startswith("/workflows"):
        given = {**given, "id": given["workflow"]}
    if path.startswith("/tasks"):
        given = {**given, "name": given["task"]}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda part: given.get(part[1], "x"), path)


WRONG: dict[str, Callable[[Visitor, Visitor, str], object]] = {
    "no token": lambda admin, _, path: admin.post(path, 403, token=""),
    "a wrong token": lambda admin, _, path: admin.post(path, 403, token="0" * 64),
    "the token of another visitor": lambda admin, viewer, path: admin.post(path, 403, token=viewer.token),
    "a foreign origin": lambda admin, _, path: admin.post(path, 403, origin="https://example.com"),
    "a null origin": lambda admin, _, path: admin.post(path, 403, origin="null"),
    "no origin": lambda admin, _, path: admin.post(path, 403, origin=None),
    "a viewer": lambda _, viewer, path: viewer.post(path, 403),
}


def test_no_action_is_done_without_token_origin_and_role(app: App, visitor_as: Callable[..., Visitor]) -> None:
    given = used(app)
    admin, viewer = visitor_as("admin"), visitor_as("viewer")
    before = everything(app)

    for post in pages.POSTS:
        for send in WRONG.values():
            send(admin, viewer, filled(post.path, given))
        assert everything(app) == before, post.path

    for post in pages.POSTS:
        form = {"token": admin.token}
        answer = admin.client.post(
            filled(post.path, given), data=form, headers={"origin": ORIGIN}, follow_redirects=False
        )
        assert answer.status_code != 403, f"{post.path}: and nothing else kept it from being done"
    assert everything(app) != before


def test_no_action_is_done_by_get(app: App, visitor: Visitor) -> None:
    given = used(app)
    shown = {page.path for page in pages.PAGES}
    before = everything(app)

    for post in pages.POSTS:
        if post.path not in shown:
            answer = visitor.client.get(filled(post.path, given))
            assert answer.status_code in {404, 405}, post.path

    assert everything(app) == before


def test_a_viewer_sees_no_button(app: App, visitor_as: Callable[..., Visitor]) -> None:
    used(app)
    viewer = visitor_as("viewer")

    for page in pages.PAGES:
        if "{" not in page.path:
            assert 'method="post"' not in viewer.client.get(page.path).text, page.path


HOSTILE = [
    "%00",
    "a%00b",
    "%F0%9F",
    "%C3%28",
    "..%2F..%2Fetc",
    "%27%3B--",
    "%3Cscript%3E",
    "%E2%80%AE",
    "a" * 5000,
    "%25s",
]


def test_no_address_breaks_a_page(app: App, visitor: Visitor) -> None:
    used(app)
    addresses = [
        re.sub(r"\{[^}]+\}", part, page.path) for page in pages.PAGES for part in HOSTILE if "{" in page.path
    ]
    plain = [page.path for page in pages.PAGES if "{" not in page.path]
    names = ("q", "before", "after", "span", "state", "page", "said", "queue", "limit", "id", "selection", "since")
    addresses += [f"{path}?{'&'.join(f'{name}={part}' for name in names)}" for path in plain for part in HOSTILE]

    broken = {address[:60]: visitor.client.get(address).status_code for address in addresses}

    assert {address: status for address, status in broken.items() if status >= 500} == {}


def test_an_action_names_a_verb_that_roles_know() -> None:
    for post in pages.POSTS:
        Access("admin").may(post.verb)
