"""The examples in the docstrings of public names run on both databases, all in this process.

A class, a function and an error have a doctest. A method or property has its example in one line, as code between
double backticks that uses its name: ``job.cancel()  # True``. The comment is its value. Those of a class run in the
order of the source, on one App.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import dray
from dray import testing
from dray.ops.listing import QueueInfo, Stats
from dray.runtime.worker import Worker
from dray.schedules import ScheduleInfo
from dray.task.task import Enqueuer

NOT_SHOWN = {"MoveError"}  # only `dray db move` raises it
PUBLIC: dict[str, Any] = {
    **{name: getattr(dray, name) for name in dray.__all__ if name not in NOT_SHOWN},
    **{name: getattr(testing, name) for name in testing.__all__},
    "Worker": Worker,
}
CLASSES = (dray.App, dray.Task, dray.Job, dray.Run, dray.Workflow, dray.Access, ScheduleInfo, QueueInfo, Stats)
# What the reference lists of a task; the rest is for workers.
OF_TASKS = ("enqueue", "aenqueue", "enqueue_many", "aenqueue_many", "name", "using")


@pytest.fixture
def names(url: str) -> Generator[dict[str, Any]]:
    """What an example may use without saying where it comes from."""
    with dray.App(url) as app:

        @app.task(name="add", rate="100/s")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="fail", max_attempts=1)
        def fail() -> None:
            raise ValueError("no such customer")

        tools = {name: getattr(testing, name) for name in testing.__all__}
        yield {
            "__name__": "shop",
            "dray": dray,
            "app": app,
            "add": add,
            "fail": fail,
            "UTC": UTC,
            "datetime": datetime,
            **tools,
        }


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(
    name: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PUBLIC[name].__doc__ or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, f"the docstring of {name} has no example"

    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append, clear_globs=False)

    assert result.failed == 0, "".join(said)
    if (made := example.globs["app"]) is not names["app"]:
        made.close()


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_the_examples_of_a_class_run_in_their_order(of: type, names: dict[str, Any]) -> None:
    names |= _handles(names["app"], names["add"], names["fail"])

    for name, member in _members(of):
        examples = list(_examples(name, inspect.getdoc(member) or ""))
        assert examples, (
            f"the docstring of {of.__name__}.{name} has no example: code in double backticks that uses it"
        )
        for example in examples:
            _run(example, names)


def _handles(app: dray.App, add: dray.Task[[int, int], int], fail: dray.Task[[], None]) -> dict[str, Any]:
    """Jobs and a workflow that have ended, a job that is still to come, a workflow that is being made."""

    @app.task(name="log")
    def total(ctx: dray.Context, a: int, b: int) -> int:
        ctx.log.info("adding")
        ctx.progress(100, "added")
        return a + b

    job = total.using(headers={"request_id": "7f3a"}).enqueue(1, 2)
    failed = fail.enqueue()
    wf = app.workflow("sums")
    wf.add(add, 1, 2, step="left")
    wf.add(fail, step="right")
    run = wf.enqueue()
    assert app.worker().run_until_idle() == 4

    app.schedule("weekly", add, cron="0 3 * * *", tz="Europe/Berlin", args={"a": 1, "b": 2})
    (schedule,) = app.schedules()
    app.remove_schedule("weekly")
    other = app.workflow("others")
    other.add(add, 5, 6)
    return {
        "job": job,
        "failed": failed,
        "run": run,
        "later": add.using(delay=3600).enqueue(3, 4),
        "schedule": schedule,
        "wf": app.workflow("sums"),
        "other": other,
        "FastAPI": dict,  # takes lifespan=
    }


def _members(of: type) -> Iterator[tuple[str, Any]]:
    if of is dray.Task:
        yield from ((name, getattr(Enqueuer, name, None) or getattr(of, name)) for name in OF_TASKS)
        return
    kinds = FunctionType | property
    yield from ((name, each) for name, each in vars(of).items() if name[0] != "_" and isinstance(each, kinds))


def _examples(name: str, text: str) -> Iterator[str]:
    for code in re.findall(r"``(.+?)``", text):
        if re.search(rf"\.{name}\b", code):
            yield code


def _run(example: str, names: dict[str, Any]) -> None:
    code, _, shown = example.partition("  # ")
    if code.startswith("@"):
        code += f"\ndef example{len(names)}(first, second=None): ..."  # a name that no task has yet
    mode = "eval" if shown else "exec"
    compiled: CodeType = compile(code, example, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(compiled, names)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    if shown:
        assert value == ast.literal_eval(shown), example
