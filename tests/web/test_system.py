"""The doctor's page: what is wrong, and what to do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from dray import Access, App, dashboard
from dray.app_interface import core_of
from dray.web import pages
from dray.web.pages import system
from tests.web.browsing import Visitor


@pytest.fixture
def task(app: App) -> None:
    @app.task(name="tick")
    def tick() -> None: ...


def test_what_is_wrong_comes_first_with_advice(app: App, visitor: Visitor) -> None:
    app.enqueue("mail", {})

    words = visitor.words("/system")

    assert "The queue does not work: no worker is alive." in words
    assert "failed workers no worker is alive, and 1 job could run dray worker" in words
    assert re.search(r"ok schema tables at version \d", words)
    assert words.index("failed workers") < words.index("ok schema")


@pytest.mark.usefixtures("task")
def test_a_queue_that_works_is_said_to(app: App, visitor: Visitor) -> None:
    with app.worker():
        assert "The queue works. 1 worker is alive." in visitor.words("/system")


def test_the_checks_are_those_of_the_doctor(visitor: Visitor, url: str) -> None:
    shape = visitor.json("/system.json")

    names = {check["name"] for check in shape["checks"]}
    assert names >= {"python", "database", "schema", "workers", "backlog", "schedules"}
    assert "integrity" not in names  # it reads the whole file
    assert {check["verdict"] for check in shape["checks"]} <= {"ok", "note", "warning", "failed"}
    assert shape["versions"]["Database"].startswith("SQLite" if url.startswith("sqlite") else "PostgreSQL")
    assert shape["health"]["is_healthy"] is False


def test_no_password_is_on_any_page(url: str) -> None:
    if url.startswith("sqlite"):
        return  # its address has none
    parts = urlsplit(url)
    given = parts._replace(netloc=f"{parts.username or 'postgres'}:pa55word@{parts.hostname or ''}").geturl()
    with App(given, listen_url=given) as app:
        visitor = Visitor(dashboard(app, access=lambda _: "admin"), Access("admin"))
        paths = [page.path for page in pages.PAGES if "{" not in page.path]

        paths += [f"{path.rstrip('/') or '/overview'}.json" for path in paths]
        shown = {path: visitor.client.get(path).text for path in paths}

    assert "listen_url" in shown["/system"]
    assert [path for path, text in shown.items() if "pa55word" in text] == []


@pytest.mark.usefixtures("task")
def test_one_look_serves_all_and_can_be_asked_for_again(app: App, visitor: Visitor) -> None:
    assert "no worker is alive" in visitor.words("/system")
    with app.worker():
        visitor.site.forget()  # as after an action
        assert "no worker is alive" in visitor.client.get("/system").text  # what was seen a moment ago
        assert "The queue works." in visitor.client.get("/system?again=1").text


def test_a_look_takes_no_longer_than_its_patience(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_PATIENCE", 0.000_001)

    visitor.page("/system")  # what could not be known in time is said, or failed; the page is there


def test_every_role_may_read_it_unless_only_some_queues_are_theirs(visitor_as: Callable[..., Visitor]) -> None:
    assert "System" in visitor_as("viewer").words("/system")
    visitor_as("admin", queues=["mail"]).page("/system", 403)


# Pruning


def ended(app: App) -> str:
    """A job that was cancelled at this moment."""
    job = app.enqueue("mail", {})
    job.cancel()
    return job.id


def until_pruned(visitor: Visitor) -> None:
    done = threading.Event()
    assert visitor.site.pruning.do("after it", done.set)
    assert done.wait(20)


def test_ended_jobs_are_pruned_and_that_is_written_down(app: App, visitor: Visitor) -> None:
    ids = [ended(app), ended(app)]
    live = app.enqueue("mail", {})

    assert "Prune…" in visitor.words("/system")
    visitor.post("/system/prune", days="0")
    until_pruned(visitor)

    assert [job.id for job in app.jobs()] == [live.id]
    assert not set(ids) & {job.id for job in app.jobs()}
    (action,) = core_of(app).backend.actions.newest(10)
    assert (action.who, action.via, action.verb, action.done, action.refused) == ("ann", "web", "prune", 2, 0)


def test_without_days_jobs_stay_for_their_usual_time(app: App, visitor: Visitor) -> None:
    job_id = ended(app)

    visitor.post("/system/prune")
    until_pruned(visitor)

    assert [job.id for job in app.jobs()] == [job_id]


def test_one_prune_at_a_time(app: App, visitor: Visitor) -> None:
    go_on = threading.Event()
    visitor.site.pruning.do("prune", lambda: go_on.wait(20))

    answer = visitor.post("/system/prune", 409)
    go_on.set()
    until_pruned(visitor)

    assert "being pruned already" in answer.text
    assert core_of(app).backend.actions.newest(10) == []


@pytest.mark.parametrize("days", ["-1", "1.5", "soon", "²", "99999999999999999999"])
def test_days_that_cannot_be_are_refused(app: App, visitor: Visitor, days: str) -> None:
    ended(app)

    assert "Days must be a whole number" in visitor.post("/system/prune", 409, days=days).text
    assert len(app.jobs()) == 1


def test_only_an_admin_may_prune(visitor_as: Callable[..., Visitor]) -> None:
    operator = visitor_as("operator")

    assert "Prune…" not in operator.words("/system")
    operator.post("/system/prune", 403)
