"""When a failed attempt is retried, and when not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pytest

import dray
from dray.app import App
from dray.handle.job import Job
from tests.runtime.watching import LONG, outcomes, sql, state_of

FLOOR = {1: 2.0, 2: 4.0, 3: 8.0}  # of the default policy, in seconds


def failing(app: App, name: str = "fails", error: BaseException | None = None, **options: Any) -> Any:
    def body() -> NoReturn:
        raise error or ValueError("no")

    given: dict[str, Any] = {"name": name, "max_attempts": 4, **options}
    return app.task(**given)(body)


def waits(app: App, *jobs: Job[Any]) -> list[list[float]]:
    """Returns the delay of each job after its first, second and third attempt, without waiting for it."""
    found: list[list[float]] = [[] for _ in jobs]
    for _ in range(3):
        app.worker(concurrency=1).run_until_idle()
        for job, seconds in zip(jobs, found, strict=True):
            finished_at = job.attempts()[-1].finished_at
            assert finished_at is not None
            assert job.state == "scheduled"
            seconds.append((job.run_at - finished_at).total_seconds())
            sql(app, "UPDATE dray_jobs SET run_at = created_at WHERE id = ?", job.id)
    return found


def test_each_policy_says_how_long_to_wait_and_nothing_is_retried_sooner(app: App) -> None:
    def squared(attempt: int) -> float:
        return 10.0 * attempt * attempt

    policies: dict[str, tuple[Any, tuple[float, float, float]]] = {
        "seconds": (7, (7, 7, 7)),
        "fixed": (dray.fixed(9), (9, 9, 9)),
        "linear": (dray.linear(5, cap=12), (5, 10, 12)),
        "exponential": (dray.exponential(base=3, cap=20, jitter=0), (3, 9, 20)),
        "callable": (squared, (10, 40, 90)),
    }
    jobs = [failing(app, name, retry=policy).enqueue() for name, (policy, _) in policies.items()]

    for seconds, (_, wanted) in zip(waits(app, *jobs), policies.values(), strict=True):
        for waited, asked in zip(seconds, wanted, strict=True):
            assert asked <= waited < asked + 2  # measured from the write, a moment after the end of the attempt


def test_by_default_the_wait_doubles_and_chance_only_adds(app: App) -> None:
    jobs = [failing(app, f"fails-{n}").enqueue() for n in range(5)]

    for seconds in waits(app, *jobs):
        for waited, floor in zip(seconds, FLOOR.values(), strict=True):
            assert floor <= waited < 2 * floor + 2


def raises(attempt: int) -> float:
    return attempt / 0


def is_negative(attempt: int) -> float:
    return -attempt


def is_no_number(attempt: int) -> float:
    return attempt * float("nan")


def is_text(attempt: int) -> str:
    return f"{attempt}"


def takes_nothing() -> float:
    return 7


@pytest.mark.parametrize("policy", [raises, is_negative, is_no_number, is_text, takes_nothing])
def test_a_policy_that_fails_costs_the_job_nothing(
    app: App, policy: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = failing(app, retry=policy).enqueue()

    assert FLOOR[1] <= waits(app, job)[0][0] < 2 * FLOOR[1] + 2
    assert outcomes(job) == ["error"] * 3
    assert all("ValueError" in (attempt.error.type or "") for attempt in job.attempts() if attempt.error)
    assert any("retry policy failed" in record.getMessage() for record in caplog.records)


def test_the_wait_is_kept_to(app: App) -> None:
    starts: list[float] = []

    @app.task(name="twice", retry=0.3)
    def twice() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise ValueError("again")

    with app.worker():
        twice.enqueue().result(timeout=LONG)

    assert 0.3 <= starts[1] - starts[0] < 0.8


def test_no_more_attempts_than_allowed_are_made(app: App) -> None:
    jobs = {n: failing(app, f"fails-{n}", max_attempts=n, retry=0).enqueue() for n in (1, 2, 5)}
    one_off = failing(app, retry=0).using(max_attempts=2).enqueue()

    assert app.worker().run_until_idle() == 1 + 2 + 5 + 2

    for n, job in jobs.items():
        assert (state_of(job), job.attempt, outcomes(job)) == ("failed(error)", n, ["error"] * n)
    assert outcomes(one_off) == ["error"] * 2


def test_each_failed_attempt_is_logged_once_the_last_as_a_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dray")
    job = failing(app, max_attempts=2, retry=0).enqueue()
    app.worker(concurrency=1).run_until_idle()

    found = [record for record in caplog.records if f"job {job.id[-8:]} (fails)" in record.getMessage()]
    assert [(record.name, record.levelname) for record in found] == [("dray", "INFO"), ("dray", "WARNING")]


def test_an_operators_retry_starts_the_count_over(app: App) -> None:
    job = failing(app, max_attempts=2, retry=0).enqueue()
    app.worker().run_until_idle()
    assert state_of(job) == "failed(error)"

    assert job.retry()
    assert app.worker().run_until_idle() == 2

    assert (state_of(job), job.attempt) == ("failed(error)", 2)
    assert [attempt.number for attempt in job.attempts()] == [1, 2, 1, 2]


class Temporary(Exception):
    pass


class Hopeless(Temporary):
    pass


RETRIED, FINAL = 2, 1


CASES: list[tuple[dict[str, Any], BaseException, int]] = [
    ({"retry_on": [Temporary]}, Temporary(), RETRIED),
    ({"retry_on": [Temporary]}, Hopeless(), RETRIED),
    ({"retry_on": [Temporary]}, ValueError(), FINAL),
    ({"retry_on": [OSError, Temporary]}, ConnectionResetError(), RETRIED),
    ({"fail_on": [Hopeless]}, Hopeless(), FINAL),
    ({"fail_on": [Hopeless]}, Temporary(), RETRIED),
    ({"retry_on": [Temporary], "fail_on": [Hopeless]}, Hopeless(), FINAL),
    ({"retry_on": [Hopeless], "fail_on": [Temporary]}, Hopeless(), FINAL),
    ({"retry_on": [Exception]}, SystemExit(1), FINAL),
    ({"fail_on": [SystemExit]}, SystemExit(1), FINAL),
    ({"retry_on": [ValueError]}, dray.Retry(0), RETRIED),
    ({"fail_on": [Exception]}, dray.Retry(0), RETRIED),
    ({"retry_on": [dray.Fail]}, dray.Fail("no"), FINAL),
]


def test_which_errors_are_tried_again(app: App) -> None:
    jobs = [
        failing(app, f"case-{n}", error, max_attempts=2, retry=0, **options).enqueue()
        for n, (options, error, _) in enumerate(CASES)
    ]

    app.worker().run_until_idle()

    assert [len(outcomes(job)) for job in jobs] == [attempts for _, _, attempts in CASES]
    assert {state_of(job) for job in jobs} == {"failed(error)"}


def test_a_retry_without_a_delay_waits_as_the_policy_says(app: App) -> None:
    jobs = [
        failing(app, "plain", dray.Retry(), retry=30).enqueue(),
        failing(app, "retry_on", dray.Retry(), retry=30, retry_on=[OSError]).enqueue(),
        failing(app, "fail_on", dray.Retry(), retry=30, fail_on=[Exception]).enqueue(),
        failing(app, "given", dray.Retry(timedelta(seconds=12)), retry=30).enqueue(),
    ]

    found = waits(app, *jobs)

    assert [round(seconds[0]) for seconds in found[:3]] == [30, 30, 30]
    assert round(found[3][0]) == 12
    assert {outcome for job in jobs for outcome in outcomes(job)} == {"retry"}


def test_a_job_that_waits_for_its_retry_shows_why(app: App) -> None:
    job = failing(app, error=ConnectionError("no route"), retry=60).enqueue()
    app.worker().run_until_idle()

    assert (state_of(job), job.attempt, job.error) == ("scheduled", 1, "ConnectionError: no route")
    assert job.cancel()
    assert state_of(job) == "cancelled(user)"
