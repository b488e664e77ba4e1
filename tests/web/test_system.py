"""The doctor's page: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray import App
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
    assert "ok schema tables at version 6" in words
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


def test_no_password_is_shown(url: str, visitor: Visitor) -> None:
    page = visitor.page("/system")

    assert "Settings" in page
    if "@" in url:
        password = url.partition("//")[2].partition("@")[0].partition(":")[2]
        assert not password or f":{password}@" not in page
    assert "busy_timeout" in page


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
