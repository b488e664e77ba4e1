"""However a body ends, its outcome is recorded once, and the worker continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn, cast
from uuid import UUID

import pytest

import dray
from dray.app import App
from dray.errors import JobCancelled, JobFailed
from dray.handle.job import AttemptError, Job
from tests.runtime.watching import ended, outcomes, state_of

RUNNERS = ("thread", "async")
Body = Callable[[], Any]


def make(app: App, name: str, runner: str, body: Body, **options: Any) -> Any:
    """Returns a task with this body, as a function or as a coroutine function."""

    def function() -> Any:
        return body()

    async def coroutine() -> Any:
        await asyncio.sleep(0)
        return body()

    return app.task(name=name, **options)(function if runner == "thread" else coroutine)


def run_all(app: App, bodies: Mapping[str, Body], runner: str = "thread", **options: Any) -> dict[str, Job[Any]]:
    """Runs a job of each body on one worker with one slot. A last job behind them must complete."""
    jobs = {name: make(app, name, runner, body, **options).enqueue() for name, body in bodies.items()}
    last = make(app, "last", runner, lambda: "still here").enqueue()

    app.worker(concurrency=1).run_until_idle()

    assert last.result(timeout=0) == "still here"
    return jobs


def run_one(app: App, body: Body, runner: str = "thread", **options: Any) -> Job[Any]:
    return run_all(app, {"body": body}, runner, **options)["body"]


def error_of(job: Job[Any], attempt: int = -1) -> AttemptError:
    found = job.attempts()[attempt].error
    assert found is not None
    return found


def raising(error: BaseException) -> Body:
    def body() -> NoReturn:
        raise error

    return body


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_a_body_returns_is_the_result(app: App, runner: str) -> None:
    job = run_one(app, lambda: {"n": [1, 2.5, None, "é"]}, runner)

    assert job.result(timeout=0) == {"n": [1, 2.5, None, "é"]}
    (attempt,) = job.attempts()
    assert (attempt.number, attempt.outcome, attempt.error) == (1, "completed", None)
    assert attempt.started_at is not None
    assert attempt.finished_at is not None
    assert attempt.started_at <= attempt.finished_at


ERRORS: dict[str, BaseException] = {
    "error": ValueError("no"),
    "exit-3": SystemExit(3),
    "exit": SystemExit(),
    "ctrl-c": KeyboardInterrupt(),
    "cancelled-by-hand": asyncio.CancelledError(),
    "generators-end": GeneratorExit(),
    "no-memory": MemoryError(),
    "its-own-timeout": TimeoutError("its own"),
    "base": BaseException("bare"),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_whatever_is_raised_fails_the_attempt_and_nothing_else(app: App, runner: str) -> None:
    jobs = run_all(
        app,
        {name: raising(error) for name, error in ERRORS.items()},
        runner,
        max_attempts=2,
        retry=0,
    )

    for job, error in zip(jobs.values(), ERRORS.values(), strict=True):
        assert state_of(job) == "failed(error)"
        assert outcomes(job) == ["error", "error"]
        kind = type(error).__name__
        assert (error_of(job).type, error_of(job).message) == (kind, str(error))
        assert kind in (error_of(job).traceback or "")


def test_a_stop_iteration_is_an_error_like_any_other(app: App) -> None:
    job = run_one(app, raising(StopIteration(7)), max_attempts=1)

    assert (state_of(job), error_of(job).type) == ("failed(error)", "StopIteration")


def test_the_traceback_shows_the_users_code_and_none_of_ours(app: App) -> None:
    job = run_one(app, raising(ValueError("here")), max_attempts=1)

    with pytest.raises(JobFailed, match=r"\(body\) failed in attempt 1 of 1: ValueError: here") as caught:
        job.result(timeout=0)
    assert "raise error" in caught.value.__notes__[0]
    assert "dray/runtime" not in caught.value.__notes__[0]


class StrRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit("from __str__")


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("from __repr__")


class StrIsNone(Exception):
    def __str__(self) -> str:
        return cast("str", None)


class Dangling(Exception):
    """An exception whose cause is itself."""

    def __init__(self) -> None:
        super().__init__("round and round")
        self.__cause__ = self


def recurse(n: int = 0) -> int:
    return recurse(n + 1) + 1


def chained() -> None:
    try:
        {}["the first"]
    except KeyError as error:
        raise ValueError("the second") from error


def grouped() -> NoReturn:
    raise ExceptionGroup("both", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])


@pytest.mark.parametrize("runner", RUNNERS)
def test_errors_that_are_hard_to_show_are_shown_as_well_as_can_be(app: App, runner: str) -> None:
    bodies: dict[str, Body] = {
        "str-raises": raising(StrRaises()),
        "str-is-none": raising(StrIsNone()),
        "repr-raises": raising(ReprRaises("said")),
        "circle": raising(Dangling()),
        "recursion": recurse,
        "chained": chained,
        "group": grouped,
        "nul": raising(ValueError("a\0b\udc80c\x1b[31m")),
        "password": raising(ValueError("cannot reach postgresql://ann:sesame@db/x")),
        "long-name": raising(type("X" * 1_000_000, (Exception,), {})("m")),
    }

    jobs = run_all(app, bodies, runner, max_attempts=1)

    assert {state_of(job) for job in jobs.values()} == {"failed(error)"}
    said = {name: error_of(job) for name, job in jobs.items()}
    assert (said["str-raises"].type, said["str-is-none"].type) == ("StrRaises", "StrIsNone")
    assert "could not be read: SystemExit" in (said["str-raises"].message or "")
    assert "could not be read: TypeError" in (said["str-is-none"].message or "")
    assert said["repr-raises"].message == "said"
    assert said["circle"].message == "round and round"
    assert said["recursion"].type == "RecursionError"
    assert "in recurse" in (said["recursion"].traceback or "")
    assert "KeyError: 'the first'" in (said["chained"].traceback or "")
    assert "direct cause" in (said["chained"].traceback or "")
    assert "KeyError: 'two'" in (said["group"].traceback or "")
    assert (said["nul"].message or "").startswith("a\ufffdb\\udc80c")
    assert "sesame" not in f"{said['password']}{jobs['password'].error}"
    assert len(said["long-name"].type or "") < 1_000
    assert all(len(error.traceback or "") <= 64 * 1024 for error in said.values())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_message_of_100_megabytes_is_cut_and_marked(app: App, runner: str) -> None:
    began = time.monotonic()

    def body() -> NoReturn:
        raise ValueError("x" * 100_000_000)

    job = run_one(app, body, runner, max_attempts=1)

    assert time.monotonic() - began < 20
    error = error_of(job)
    assert len(error.message or "") < 5_000
    assert "[truncated, 100,000,000 bytes in all]" in (error.message or "")
    assert len((error.traceback or "").encode()) <= 64 * 1024
    assert "truncated" in (error.traceback or "")
    assert len(job.error or "") <= 300


# Results


@dataclass
class Broken:
    """A dataclass with a field that raises when read."""

    shown: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "shown":
            raise SystemExit("from a field")
        return object.__getattribute__(self, name)


def loop_of_lists() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def not_a_number() -> float:
    return float("nan")


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_result_that_cannot_be_stored_fails_the_job_without_running_it_again(app: App, runner: str) -> None:
    calls: list[str] = []

    def counted(name: str, value: Callable[[], Any]) -> Body:
        def body() -> Any:
            calls.append(name)
            return value()

        return body

    values: dict[str, Callable[[], Any]] = {
        "no-json": object,
        "too-large": lambda: "x" * (1 << 20),
        "in-itself": loop_of_lists,
        "nan": not_a_number,
        "bad-field": Broken,
        "surrogate": lambda: ["\udc80"],
    }

    jobs = run_all(app, {name: counted(name, value) for name, value in values.items()}, runner, retry=0)

    assert {name: state_of(job) for name, job in jobs.items()} == dict.fromkeys(values, "failed(result)")
    assert calls == list(values)
    assert {tuple(outcomes(job)) for job in jobs.values()} == {("result",)}
    assert "its result cannot be stored" in (error_of(jobs["no-json"]).message or "")
    with pytest.raises(JobFailed, match="completed, but its result cannot be stored"):
        jobs["too-large"].result(timeout=0)


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    placed: datetime
    price: Decimal


WHEN = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_results_come_back_as_they_are_annotated(app: App) -> None:
    @app.task(name="order")
    def order() -> Order:
        return Order(7, WHEN, Decimal("9.90"))

    @app.task(name="many")
    async def many() -> tuple[UUID, list[date], set[int], Colour, bytes]:
        return UUID(int=5), [WHEN.date()], {1, 2}, Colour.RED, b"\0\xff"

    @app.task(name="wrong")
    def wrong() -> int:
        return cast("int", "annotations promise nothing")

    jobs = order.enqueue(), many.enqueue(), wrong.enqueue()
    assert app.worker().run_until_idle() == 3

    assert jobs[0].result(timeout=0) == Order(7, WHEN, Decimal("9.90"))
    assert jobs[1].result(timeout=0) == (UUID(int=5), [WHEN.date()], {1, 2}, Colour.RED, b"\0\xff")
    assert jobs[2].result(timeout=0) == "annotations promise nothing"


# Steering


@pytest.mark.parametrize("runner", RUNNERS)
def test_fail_ends_the_job_whatever_attempts_are_left(app: App, runner: str) -> None:
    job = run_one(app, raising(dray.Fail("no such user")), runner, max_attempts=5, retry=0)

    assert (state_of(job), outcomes(job)) == ("failed(error)", ["error"])
    assert (error_of(job).type, error_of(job).message) == ("Fail", "no such user")


@pytest.mark.parametrize("runner", RUNNERS)
def test_cancel_ends_the_job_as_cancelled(app: App, runner: str) -> None:
    job = run_one(app, raising(dray.Cancel("not needed")), runner)

    assert (state_of(job), outcomes(job)) == ("cancelled(user)", ["cancelled"])
    with pytest.raises(JobCancelled, match="was cancelled: not needed"):
        job.result(timeout=0)


@pytest.mark.parametrize("runner", RUNNERS)
def test_retry_counts_the_attempt_and_waits_for_as_long_as_it_says(app: App, runner: str) -> None:
    jobs = run_all(
        app,
        {"later": raising(dray.Retry(delay=60)), "at-once": raising(dray.Retry(0, "busy"))},
        runner,
        max_attempts=2,
    )

    later, at_once = jobs["later"], jobs["at-once"]
    assert (state_of(later), later.attempt, outcomes(later)) == ("scheduled", 1, ["retry"])
    finished_at = later.attempts()[0].finished_at
    assert finished_at is not None
    assert (later.run_at - finished_at).total_seconds() >= 60
    assert (state_of(at_once), outcomes(at_once)) == ("failed(error)", ["retry", "error"])
    assert error_of(at_once).message == "busy"


@pytest.mark.parametrize("runner", RUNNERS)
def test_snooze_gives_the_attempt_back(app: App, runner: str) -> None:
    naps = iter([0, 0, 0, 60])

    def body() -> NoReturn:
        raise dray.Snooze(next(naps))

    job = run_one(app, body, runner, max_attempts=1)

    assert (state_of(job), job.attempt, outcomes(job)) == ("scheduled", 0, [])
    assert 50 < (job.run_at - job.created_at).total_seconds() < 70


def test_a_snoozed_job_runs_when_its_time_has_come(app: App) -> None:
    seen: list[int] = []

    @app.task(name="nap", max_attempts=1)
    def nap(ctx: dray.Context) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise dray.Snooze(0.05)
        return "rested"

    with app.worker():
        job = nap.enqueue()
        assert job.result(timeout=30) == "rested"

    assert seen == [1, 1, 1]
    assert ended(job) == "completed"
