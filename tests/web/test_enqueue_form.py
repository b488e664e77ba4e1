"""The form that enqueues a task, as a person fills it in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from html import unescape
from typing import Any, Literal

import pytest

from dray import App, Job
from dray.app_interface import core_of
from tests.web.browsing import Visitor

HOSTILE = '"><script>alert(1)</script>{{7*7}}'


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.fixture
def path(app: App) -> str:
    @app.task(name="mail.send", queue="mail", redact=["token"])
    def send(
        to: str,
        number: int,
        weight: float = 1.5,
        html: bool = True,
        size: Size = Size.SMALL,
        kind: Literal["a", 1] | None = None,
        at: Point | None = None,
        tags: list[str] | None = None,
        token: str = "",
    ) -> None:
        """Sends a mail."""

    return f"/tasks/{send.name}/enqueue"


def send(visitor: Visitor, path: str, form: dict[str, str], status: int = 303) -> Any:
    post: Any = visitor.post
    return post(path, status, **form)


def enqueued(app: App, answer: Any) -> Job[Any]:
    job_id = re.match(r"/jobs/([0-9a-f-]+)", answer.headers["location"])
    assert job_id is not None
    return app.job(job_id[1])


def values(page: str) -> dict[str, str]:
    """What stands in the fields of a form."""
    found = {
        unescape(name): unescape(value)
        for name, value in re.findall(r'<input class="field"[^>]* name="([^"]*)" value="([^"]*)"', page)
    }
    for name, inside in re.findall(r'<textarea[^>]* name="([^"]*)"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL):
        found[unescape(name)] = unescape(inside)
    for name, inside in re.findall(r'<select[^>]* name="([^"]*)"[^>]*>(.*?)</select>', page, re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', inside)
        found[unescape(name)] = unescape(chosen[1]) if chosen else ""
    for name, more in re.findall(r'<input type="checkbox"[^>]* name="([^"]*)" value="on"( checked)?', page):
        found[unescape(name)] = "on" if more else ""
    return found


def test_the_form_has_a_field_for_each_argument(path: str, visitor: Visitor) -> None:
    words, page = visitor.words(path), visitor.page(path)

    assert "Enqueue mail.send Sends a mail." in words
    assert "number needed a whole number" in words
    assert "weight a number; if it is left empty: 1.5" in words
    assert '<select class="field" id="arg-size"' in page
    assert '<option value="&#34;large&#34;">' in page
    assert '<textarea class="field mono" id="arg-at"' in page
    assert values(page)["arg:html"] == "on"
    assert visitor.json(f"{path}.json")["schema"]["required"] == ["to", "number"]


def test_every_input_has_a_label(path: str, visitor: Visitor) -> None:
    page = visitor.page(path)
    ids = re.findall(r'<(?:input class="field"|input type="checkbox"|select|textarea)[^>]* id="([^"]+)"', page)

    assert len(ids) == 14
    assert [each for each in ids if f'for="{each}"' not in page] == []
    assert len(set(ids)) == len(ids)


def test_what_is_filled_in_is_enqueued(app: App, path: str, visitor: Visitor) -> None:
    answer = send(
        visitor,
        path,
        {
            "arg:to": "ann@example.com",
            "arg:number": "9007199254740993",
            "arg:weight": "",
            "arg:size": '"large"',
            "arg:kind": "1",
            "arg:at": '{"x": 3}',
            "arg:tags": '["a", "b"]',
            "option:queue": "slow",
            "option:delay": "1h30m",
            "option:priority": "-5",
            "option:unique": "mail:7",
            "option:key": "acct:7",
        },
    )

    job = enqueued(app, answer)
    assert job.args == {
        "to": "ann@example.com",
        "number": 9007199254740993,
        "html": False,  # it was not ticked
        "size": "large",
        "kind": 1,
        "at": {"x": 3},
        "tags": ["a", "b"],
    }
    assert (job.queue, job.state, job.row.priority, job.row.unique_key) == ("slow", "scheduled", -5, "mail:7")
    assert job.key == "acct:7"
    assert (job.row.run_at - job.row.created_at) // 1_000_000 == 5_400
    (action,) = core_of(app).backend.actions.newest()
    assert (action.who, action.via, action.verb, action.target, action.done) == ("ann", "web", "enqueue", job.id, 1)


def test_an_empty_text_can_be_given(app: App, path: str, visitor: Visitor) -> None:
    job = enqueued(app, send(visitor, path, {"arg:to": '""', "arg:number": "1"}))

    assert (job.args or {})["to"] == ""


@pytest.mark.parametrize(
    ("field", "typed", "error"),
    [
        ("arg:to", "", "Fill this in, or write"),
        ("arg:number", "", "Fill this in."),
        ("arg:number", "many", "This is not a whole number."),
        ("arg:number", "1.5", "args.number"),
        ("arg:weight", "NaN", "This is not a number."),
        ("arg:at", "{x: 3}", "This is not JSON"),
        ("arg:at", '{"y": 3}', "args.at"),
        ("arg:tags", "[" * 100_000, "nested too deep"),
        ("option:queue", "a,queue", "cannot be used"),
        ("option:delay", "soon", "This is no duration"),
        ("option:priority", "high", "This is not a whole number."),
        ("option:priority", "99999999999", "priority"),
        ("option:key", "x" * 201, "key must have 1 to 200 characters"),
    ],
)
def test_an_error_is_shown_and_everything_typed_is_kept(
    app: App, path: str, visitor: Visitor, field: str, typed: str, error: str
) -> None:
    sent = {"arg:to": HOSTILE, "arg:number": "7", "arg:tags": '["x"]', "option:unique": "u", field: typed}

    page = send(visitor, path, sent, 422).text

    assert error in unescape(page)
    assert {name: values(page)[name] for name in sent} == sent
    assert values(page)["arg:html"] == ""  # it was not ticked, although its default is true
    assert "<script>alert" not in page
    assert 'aria-current="page">' in page
    assert app.jobs() == []
    assert core_of(app).backend.actions.newest() == []


def test_a_choice_that_is_not_in_the_list_is_refused(app: App, path: str, visitor: Visitor) -> None:
    sent = {"arg:to": "a", "arg:number": "7", "arg:size": '"huge"'}

    assert "Choose one of the list." in send(visitor, path, sent, 422).text
    assert app.jobs() == []


def test_a_job_is_enqueued_again_but_for_what_is_hidden(app: App, path: str, visitor: Visitor) -> None:
    job = app.enqueue(
        "mail.send", {"to": HOSTILE, "number": 3, "token": "s3cret", "tags": ["a"], "html": False}, queue="slow"
    )

    page = visitor.page(f"{path}?like={job.id}")
    filled = values(page)

    assert "s3cret" not in page
    assert "It is hidden in the job that this was filled in from" in page
    assert filled["arg:token"] == ""
    assert (filled["arg:to"], filled["arg:number"], filled["arg:tags"]) == (HOSTILE, "3", '["a"]')
    assert (filled["arg:html"], filled["option:queue"]) == ("", "slow")
    assert f"Filled in from job {job.id[-8:]}" in visitor.words(f"{path}?like={job.id}")


def test_only_a_job_of_this_task_fills_it_in(app: App, path: str, visitor: Visitor) -> None:
    other = app.enqueue("elsewhere", {})

    assert "is of task elsewhere" in visitor.page(f"{path}?like={other.id}", 400)
    visitor.page(f"{path}?like=00000000-0000-7000-8000-000000000000", 404)


def test_a_task_whose_code_is_not_here_takes_a_json_object(app: App, visitor: Visitor) -> None:
    assert "a worker checks them" in visitor.words("/tasks/elsewhere/enqueue")

    job = enqueued(app, send(visitor, "/tasks/elsewhere/enqueue", {"arg:args": '{"a": [1, 2]}'}))

    assert job.args == {"a": [1, 2]}
    page = visitor.page(f"/tasks/elsewhere/enqueue?like={job.id}")
    assert values(page)["arg:args"] == ""  # only the code says which are secret
    assert "must be a JSON object" in send(visitor, "/tasks/elsewhere/enqueue", {"arg:args": "[1]"}, 422).text


def test_more_arguments_by_name_go_into_one_field(app: App, visitor: Visitor) -> None:
    @app.task(name="loose")
    def loose(first: int, *rest: int, **more: str) -> None: ...

    sent = {"arg:first": "1", "arg:*rest": "[2, 3]", "arg:args": '{"colour": "red"}'}
    job = enqueued(app, send(visitor, f"/tasks/{loose.name}/enqueue", sent))

    assert job.args == {"first": 1, "*rest": [2, 3], "colour": "red"}
    again = values(visitor.page(f"/tasks/{loose.name}/enqueue?like={job.id}"))
    assert again["arg:args"] == '{"colour": "red"}'


def test_a_held_unique_key_leads_to_its_holder(app: App, path: str, visitor: Visitor) -> None:
    sent = {"arg:to": "a", "arg:number": "1", "option:unique": "key"}
    holder = enqueued(app, send(visitor, path, sent))

    assert enqueued(app, send(visitor, path, sent)).id == holder.id
    assert len(app.jobs()) == 1


def test_only_an_admin_sees_the_form_and_enqueues(app: App, path: str, visitor_as: Callable[..., Visitor]) -> None:
    for role in ("viewer", "operator"):
        someone = visitor_as(role)
        assert f"You may not enqueue here: your role is {role}." in someone.page(path, 403)
        send(someone, path, {"arg:to": "a", "arg:number": "1"}, 403)
    assert app.jobs() == []
