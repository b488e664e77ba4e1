"""All actions and all pages there are, each asked in every wrong way."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from dray import Access, App
from dray.app_interface import core_of
from dray.web import pages
from tests.web.browsing import ORIGIN, Visitor
from tests.web.hands import Hand
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


NAMED = {"jobs": "id", "queues": "name", "workflows": "id", "schedules": "name", "tasks": "name"}
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


# Every action in an order in which each can be done, with what its form holds.
IN_ORDER: list[tuple[str, dict[str, str]]] = [
    ("/jobs/{id}/reveal", {}),
    ("/jobs/{id}/cancel", {}),
    ("/jobs/{id}/retry", {}),
    ("/bulk/cancel", {"preview": "state:queued"}),
    ("/bulk/retry", {"preview": "state:cancelled"}),
    ("/workflows/{id}/retry", {}),  # once its step has failed
    ("/workflows/{id}/cancel", {}),
    ("/queues/{name}/pause", {"note": "why"}),
    ("/queues/{name}/resume", {}),
    ("/schedules/{name}/run", {}),
    ("/schedules/{name}/pause", {}),
    ("/schedules/{name}/resume", {}),
    ("/schedules/{name}/remove", {}),
    ("/tasks/{name}/enqueue", {"arg:a": "1"}),
    ("/jobs/{id}/delete", {}),
    ("/bulk/cancel", {"preview": "state:queued"}),
    ("/bulk/delete", {"preview": "state:cancelled"}),
    ("/system/prune", {"days": "0"}),
]
NO_ROW = {"/jobs/{id}/ask", "/bulk/{id}/stop"}  # it changes nothing; the row of what it stops is there


def test_each_action_that_is_done_leaves_one_row(app: App, visitor: Visitor) -> None:
    given = used(app)
    actions = core_of(app).backend.actions
    assert {path for path, _ in IN_ORDER} == {post.path for post in pages.POSTS} - NO_ROW

    for n, (path, form) in enumerate(IN_ORDER, 1):
        if path == "/workflows/{id}/retry":
            Hand(app, slots=10).fail("mail", "no", "guard.add", most=10)
        sent = {**form, "selection": _selection(visitor, path, form["preview"])} if "preview" in form else form
        answer = visitor.post(filled(path, given), 200 if path.endswith("reveal") else 303, **sent)
        _until_done(visitor, path, answer.headers.get("location", ""))
        rows = actions.newest(100)
        assert (len(rows), rows[0].who, rows[0].via) == (n, "ann", "web"), path
        assert (rows[0].verb, rows[0].refused) == (path.rpartition("/")[2], 0), path


def _selection(visitor: Visitor, path: str, search: str) -> str:
    page = visitor.page(f"/bulk?verb={path.rpartition('/')[2]}&q={search}&all=1")
    return re.findall(r'name="selection" value="([^"]+)"', page)[0]


def _until_done(visitor: Visitor, path: str, where: str) -> None:
    """Waits for what goes on after the answer."""
    if path.startswith("/bulk"):
        running = visitor.site.bulks.get(where.partition("?")[0].removeprefix("/bulk/"))
        assert running is not None
        assert running.ended.wait(20)
    if path.endswith("prune"):
        done = threading.Event()
        assert visitor.site.pruning.do("after it", done.set)
        assert done.wait(20)


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
    given = used(app)
    viewer = visitor_as("viewer")
    seen = set[str]()

    for page in pages.PAGES:
        answer = viewer.client.get(filled(page.path, given))
        assert 'method="post"' not in answer.text, page.path
        assert "/bulk?" not in answer.text, page.path
        if answer.status_code == 200:
            seen.add(page.path)

    assert seen >= {f"/{noun}/{{{name}}}" for noun, name in NAMED.items()}


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
