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
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import psycopg
import pytest

import dray
from dray import testing
from dray.app_interface import core_of
from dray.ops.limits import LimitInfo
from dray.ops.listing import QueueInfo, Stats, WorkerInfo
from dray.runtime.worker import Worker
from dray.schedules import ScheduleInfo
from dray.task.task import Enqueuer
from dray.testing.moving import ClockControl

NOT_SHOWN = {"MoveError"}  # only `dray db move` raises it
PUBLIC: dict[str, Any] = {
    **{name: getattr(dray, name) for name in dray.__all__ if name not in NOT_SHOWN},
    **{name: getattr(testing, name) for name in testing.__all__},
    "Worker": Worker,
    "WorkerInfo": WorkerInfo,
    "LimitInfo": LimitInfo,
    "ClockControl": ClockControl,
}
CLASSES = (
    *(dray.App, dray.Task, dray.Job, dray.Run, dray.Workflow, dray.Access, ScheduleInfo, QueueInfo, Stats, Worker),
    ClockControl,
)
INNER = {"condition", "completion"}  # for probes, and for ctx.transaction()
COMPLETING = ("transaction", "complete", "acomplete")  # members of a Context that end its job
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

    with ExitStack() as stack:
        if of is Worker:
            names["worker"] = stack.enter_context(names["app"].worker(concurrency=2))
        elif of is ClockControl:
            names["time"] = stack.enter_context(testing.clock(names["app"], at=datetime(2030, 1, 1, tzinfo=UTC)))
        for name, member in _members(of):
            _run_all(of, name, member, names)


def _run_all(of: type, name: str, member: Any, names: dict[str, Any]) -> None:
    for example in _shown(of, name, member):
        _run(example, names)


def _shown(of: type, name: str, member: Any) -> list[str]:
    examples = list(_examples(name, inspect.getdoc(member) or ""))
    assert examples, f"the docstring of {of.__name__}.{name} has no example: code in double backticks that uses it"
    return examples


def test_the_examples_of_a_context_run_inside_bodies(names: dict[str, Any]) -> None:
    app: dray.App = names["app"]
    ran: list[str] = []

    @app.task(name="total")
    def total(ctx: dray.Context, a: int) -> None:
        for name, member in _members(dray.Context):
            if name not in COMPLETING:
                _run_all(dray.Context, name, member, {**names, "ctx": ctx})
                ran.append(name)

    @app.task(name="finish")
    def finish(ctx: dray.Context, name: str) -> None:
        with _connected(app) as connection:
            _run_all(dray.Context, name, getattr(dray.Context, name), {**names, "ctx": ctx, "connection": connection})
        ran.append(name)

    wf = app.workflow("totals")
    left = wf.add(names["add"], 1, 2, step="left")
    wf.add(total.using(headers={"request_id": "7f3a"}), 1, after=[left])
    run = wf.enqueue()
    jobs = [finish.enqueue(name) for name in COMPLETING if name != "acomplete"]
    app.worker(concurrency=1).run_until_idle()  # Python 3.11 may not compile in two threads at the same time

    assert (run.state, run.counts["completed"]) == ("completed", 3), [job.error for job in run.jobs()]
    assert [(job.refresh().state, job.error) for job in jobs] == [("completed", None)] * 2
    # It needs an asynchronous connection, which tests/backends/test_join_async.py has; here it is only read.
    for example in _shown(dray.Context, "acomplete", dray.Context.acomplete):
        compile(example, "acomplete", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert {*ran, "acomplete"} == {name for name, _ in _members(dray.Context)}


@contextmanager
def _connected(app: dray.App) -> Generator[Any]:
    """A connection of the user's own, in a transaction that is committed."""
    if app.url.startswith("sqlite"):
        with closing(sqlite3.connect(core_of(app).settings.url.removeprefix("sqlite:///"))) as file, file:
            yield file
    else:
        address, _, schema = core_of(app).settings.url.partition("&schema=")
        with psycopg.connect(address, options=f"-c search_path={schema}") as server:
            yield server


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
    for name, each in vars(of).items():
        if name[0] != "_" and isinstance(each, kinds) and name not in INNER:
            yield name, each


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
