"""The pages of tasks: options, arguments, rates, and who runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dray
from dray import App
from dray.app_interface import core_of
from dray.model.limit import Source, bounds_of
from dray.testing import drain
from tests.web.browsing import Visitor
from tests.web.executed import page_statements


@pytest.fixture
def send(app: App) -> str:
    @app.task(name="mail.send", queue="mail", max_attempts=5, timeout=30, redact=["token"], retry=dray.fixed(9))
    def send(to: str, copies: int = 2, token: str = "s3cret") -> None:
        """Sends a mail to one person."""
        if to == "nobody":
            raise ValueError(to)

    return send.name


def test_without_tasks_the_list_says_how_to_have_some(visitor: Visitor) -> None:
    assert "No task is known here." in visitor.words("/tasks")


def test_the_list_shows_what_each_task_did(app: App, send: str, visitor: Visitor) -> None:
    for to in ("a", "b", "nobody"):
        app.enqueue(send, {"to": to})
    app.enqueue("elsewhere", {})
    drain(app)

    words = visitor.words("/tasks")

    assert "mail.send Sends a mail to one person. mail none 3 33.3 %" in words
    assert "elsewhere" not in words  # nothing of it ended, and no worker knows it
    (task,) = visitor.json("/tasks.json")["tasks"]
    assert (task["name"], task["queue"], task["ended"]["failed"]) == (send, "mail", 1)
    assert task["workers"] == []


def test_a_task_of_other_code_is_listed_once_something_of_it_ended(app: App, visitor: Visitor) -> None:
    app.enqueue("elsewhere", {}).cancel()

    assert "elsewhere its code is not here \u2013 none 1" in visitor.words("/tasks")
    assert "The dashboard was started without the code of this task" in visitor.words("/tasks/elsewhere")


def test_tasks_are_found_by_a_part_of_their_name(send: str, visitor: Visitor) -> None:
    assert "mail.send" in visitor.words("/tasks?name=MAIL.")
    assert "No task has this in its name." in visitor.words("/tasks?name=nothing")


def test_a_task_shows_its_options_in_words_and_its_arguments(app: App, send: str, visitor: Visitor) -> None:
    words = visitor.words(f"/tasks/{send}")
    shape = visitor.json(f"/tasks/{send}.json")

    assert "Retry after 9 s" in words
    assert "Timeout 30s" in words
    assert "Attempts 5, and 3 crashes" in words
    assert "to text it must be given" in words
    assert "copies a whole number 2" in words
    assert "token hidden text its default" in words
    assert "No live worker knows this task." in words
    assert "s3cret" not in visitor.page(f"/tasks/{send}")
    assert shape["schema"]["required"] == ["to"]
    assert shape["ended"]["total"]["completed"] == 0


def test_a_live_worker_that_knows_it_is_named(app: App, send: str, visitor: Visitor) -> None:
    with app.worker(name="app-1"):
        assert "app-1" in visitor.words(f"/tasks/{send}")


def test_its_schedules_are_listed(app: App, send: str, visitor: Visitor) -> None:
    app.schedule("digest", send, every=60, args={"to": "a"})
    app.schedule("other", "mail.sender", every=60)

    assert "Schedules digest Workers that know it" in visitor.words(f"/tasks/{send}")


def test_a_task_that_nothing_knows_is_not_found(visitor: Visitor) -> None:
    assert "No task is named nothing" in visitor.page("/tasks/nothing", 404)
    assert "cannot be used" in visitor.page("/tasks/%E2%80%AEb", 400)


def test_a_viewer_sees_no_way_to_enqueue(send: str, visitor_as: Callable[..., Visitor]) -> None:
    for role in ("viewer", "operator"):
        someone = visitor_as(role)
        assert "Enqueue" not in someone.words("/tasks") + someone.words(f"/tasks/{send}")


def test_a_visitor_of_some_queues_sees_none(send: str, visitor_as: Callable[..., Visitor]) -> None:
    someone = visitor_as("admin", queues=["mail"])

    for path in ("/tasks", f"/tasks/{send}", f"/tasks/{send}/enqueue"):
        someone.page(path, 403)


def test_the_pages_take_few_reads(app: App, send: str, visitor: Visitor) -> None:
    assert page_statements(visitor, "/tasks") <= 16  # 12 are of the rates, which all visits share
    assert page_statements(visitor, f"/tasks/{send}") <= 18


def test_limits_are_shown_in_the_list_and_on_the_page(app: App, send: str, visitor: Visitor) -> None:
    core_of(app).backend.limits.say("task", send, Source.DECLARED, bounds_of(send, {"limit": 3, "key_limit": 1}))

    for path in ("/tasks", f"/tasks/{send}"):
        assert "limit 3, key_limit 1" in visitor.words(path)
    assert visitor.json("/tasks.json")["tasks"][0]["limits"] == {"limit": 3, "key_limit": 1}
    assert visitor.json(f"/tasks/{send}.json")["limits"] == {"limit": 3, "key_limit": 1}
