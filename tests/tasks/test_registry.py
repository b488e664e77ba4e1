"""The registry: tasks are found by name, and two under one name are refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dray.errors import UnknownTask
from dray.task.registry import Registry
from dray.task.task import Task, define
from tests.tasks.fakes import add, decorated, fetch


def test_tasks_are_found_by_name(app: Any) -> None:
    registry = Registry()
    task, other = define(add, app, name="shop.add"), define(fetch, app, name="fetch")
    registry.register(task)
    registry.register(other)

    assert registry.get("shop.add") is task
    assert registry.names() == ("fetch", "shop.add")
    assert "fetch" in registry
    assert len(registry) == 2
    assert list(registry) == [task, other]


def test_an_unknown_task_is_named_with_those_spelled_alike(app: Any) -> None:
    registry = Registry()
    registry.register(define(add, app, name="mail.send"))

    with pytest.raises(UnknownTask, match=r"no task is named 'mail.sned' here; did you mean mail.send\? Import"):
        registry.get("mail.sned")
    with pytest.raises(UnknownTask, match=r"; 1 other is known\. Import"):
        registry.get("zzz")


@pytest.mark.parametrize(
    ("typed", "meant"), [("send", "mail.send or sms.send"), ("snd", "mail.send or sms.send"), ("fetch", "web.fetch")]
)
def test_the_last_part_of_a_name_is_enough_to_be_told_the_whole(app: Any, typed: str, meant: str) -> None:
    registry = Registry()
    for name in ("sms.send", "web.fetch", "mail.send"):
        registry.register(define(add, app, name=name))

    with pytest.raises(UnknownTask, match=rf"did you mean {meant}\? Import the module that defines it$"):
        registry.get(typed)


def test_two_tasks_under_one_name_are_refused_with_both_places(app: Any) -> None:
    registry = Registry()
    first, second = define(add, app, name="shop.add"), define(decorated, app, name="shop.add")
    registry.register(first)

    with pytest.raises(ValueError, match=r"two tasks are named shop.add") as caught:
        registry.register(second)

    assert f"{first.place} and {second.place}; give one of them another" in str(caught.value)
    assert registry.get("shop.add") is first


def test_a_file_imported_twice_is_recognised(app: Any) -> None:
    code = compile("def work(): ...", "tasks.py", "exec")

    def imported(module: str) -> Task[..., Any]:
        scope: dict[str, Any] = {"__name__": module}
        exec(code, scope)
        return define(scope["work"], app, name="work")

    registry = Registry()
    registry.register(imported("tasks"))

    with pytest.raises(ValueError, match=r"imported twice, as tasks and as shop.tasks"):
        registry.register(imported("shop.tasks"))


def test_at_a_prompt_a_function_may_be_written_anew(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register(define(add, app))
    again = define(add, app)
    with pytest.raises(ValueError, match="two tasks"):
        registry.register(again)

    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    registry.register(again)

    assert registry.get(again.name) is again
