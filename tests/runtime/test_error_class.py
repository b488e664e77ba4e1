"""Where the class of an attempt's error is: recorded with it, so that a program can import it."""

from __future__ import annotations

from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest

import dray
from dray.model import settlement
from dray.model.job import Claim
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Stage
from tests.runtime.watching import sql

pytestmark = pytest.mark.usefixtures("shared_forker")


class Bounced(Exception):
    class Twice(Exception): ...


class Timeout(Exception):
    """Not Dray's."""


@pytest.fixture
def app(url: str) -> Generator[dray.App]:
    with dray.App(url) as app:
        app.init()
        yield app


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def error_of(job: dray.Job[Any]) -> Any:
    (attempt,) = job.attempts()
    return attempt.error


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (ValueError, "builtins.ValueError"),
        (Bounced, f"{__name__}.Bounced"),
        (Bounced.Twice, f"{__name__}.Bounced.Twice"),
        (Timeout, f"{__name__}.Timeout"),
        (dray.Fail, "dray.job_control.Fail"),
    ],
)
def test_the_class_of_an_error_has_its_module_with_it(app: dray.App, kind: type[Exception], path: str) -> None:
    told: list[Any] = []

    @app.on("failed")
    def hear(job: Any, error: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        told.append(error.class_path)

    @app.task(name="t", max_attempts=1)
    def task() -> None:
        raise kind("no")

    job = task.enqueue()
    app.worker().run_until_idle()

    error = error_of(job)
    assert (error.type, error.class_path) == (kind.__name__, path)
    assert told == [path]


def test_what_dray_itself_records_can_be_imported(app: dray.App) -> None:
    @app.task(name="slow", max_attempts=1, timeout=0.01)
    async def slow() -> None:
        import asyncio

        await asyncio.sleep(60)

    @app.task(name="odd", max_attempts=1)
    def odd() -> Any:
        return object()

    jobs = [slow.enqueue(), odd.enqueue()]
    app.worker().run_until_idle()

    assert [error_of(job).class_path for job in jobs] == ["dray.errors.Timeout", "dray.errors.PayloadError"]
    assert issubclass(imported("dray.errors.Timeout"), TimeoutError)


def test_every_type_that_dray_records_has_a_class() -> None:
    claim = Claim("id", 1, "t", "q", "{}", 1, 1, 0, 1, None, 0, 0, None)
    died = settlement.child_died(claim, 0, 1, 0, "it died", None)

    assert died.error_class == "dray.errors.ProcessDied"
    assert settlement.unstorable(died, "no").error_class == "dray.errors.Unstorable"
    for path in ("ProcessDied", "Unstorable", "WorkerDied", "Timeout", "Misfit"):
        assert issubclass(imported(f"dray.errors.{path}"), dray.DrayError)
    assert imported("dray.WorkerDied") is imported("dray.errors.WorkerDied")


def test_an_error_of_a_child_process_comes_with_its_class() -> None:
    with Stage() as stage:
        assert stage.run(bodies.raise_this, name="ValueError").error_class == "builtins.ValueError"
        assert stage.run(bodies.exit_at_once, status=1).error_class == "dray.errors.ProcessDied"


def test_an_attempt_that_an_earlier_release_recorded_has_none(app: dray.App) -> None:
    @app.task(name="t", max_attempts=1)
    def task() -> None:
        raise ValueError("no")

    job = task.enqueue()
    app.worker().run_until_idle()
    sql(app, "UPDATE dray_attempts SET error_class = NULL")

    error = error_of(job)
    assert (error.type, error.class_path) == ("ValueError", None)


def test_a_class_that_says_nonsense_of_itself_does_no_harm(app: dray.App) -> None:
    class Odd(Exception): ...

    Odd.__module__ = "a\0b" + "x" * 10_000
    nameless = type("Nameless", (Exception,), {"__module__": 7})

    @app.task(name="t", max_attempts=1)
    def task(is_nameless: bool) -> None:
        raise (nameless if is_nameless else Odd)("no")

    first, second = task.enqueue(is_nameless=False), task.enqueue(is_nameless=True)
    app.worker().run_until_idle()

    assert len(error_of(first).class_path.encode()) <= 500
    assert error_of(second).class_path is None
