"""Retry options of one job: they come before its task's, and no type is imported by its name."""

from __future__ import annotations

import functools
import json
from datetime import timedelta
from typing import Any

import pytest

import dray
from dray.app import App
from dray.errors import ConfigError
from dray.model.job_retry import NO_RETRY, decode_retry
from dray.runtime.children.worker_side import ForkerHandle
from tests.runtime import hooked
from tests.runtime.test_middleware import hooked_app
from tests.runtime.watching import sql, state_of

__all__ = ["hooked_app"]


class BankError(Exception):
    pass


class BankBusy(BankError):
    pass


MANY = [type(f"E{n}", (Exception,), {}) for n in range(51)]


def fail(how: str) -> None:
    raise {"busy": BankBusy, "value": ValueError, "time": TimeoutError}[how](how)


def run(app: App, job: dray.Job[Any]) -> tuple[str, int]:
    app.worker(concurrency=1).run_until_idle()
    return state_of(job), job.attempt


def test_a_jobs_policy_comes_before_its_tasks(app: App) -> None:
    task = app.task(name="fail", max_attempts=3, retry=3600)(fail)

    assert run(app, task.using(retry=0).enqueue("busy")) == ("failed(error)", 3)
    assert run(app, task.enqueue("busy")) == ("scheduled", 1)
    for policy in (dray.linear(0), dray.fixed(0), timedelta(0)):
        assert run(app, task.using(retry=policy, max_attempts=2).enqueue("busy")) == ("failed(error)", 2)
    slow = task.using(retry=dray.exponential(base=1, cap=0.001, jitter=0), retry_on=OSError).enqueue("time")
    assert run(app, slow) != ("failed(error)", 1)  # a TimeoutError is an OSError


def test_a_job_says_which_errors_are_retried_by_a_base_class_too(app: App) -> None:
    task = app.task(name="fail", max_attempts=2, retry=0, retry_on=ValueError)(fail)

    assert run(app, task.enqueue("busy")) == ("failed(error)", 1)
    assert run(app, task.using(retry_on=BankBusy).enqueue("busy")) == ("failed(error)", 2)
    assert run(app, task.using(retry_on=[KeyError, BankError]).enqueue("busy")) == ("failed(error)", 2)
    assert run(app, task.using(retry_on=Exception).enqueue("value")) == ("failed(error)", 2)
    assert run(app, task.using(retry_on=BankError).enqueue("value")) == ("failed(error)", 1)


def test_what_the_task_never_retries_is_not_retried_for_a_job_either(app: App) -> None:
    task = app.task(name="fail", max_attempts=2, retry=0, fail_on=BankError)(fail)

    assert run(app, task.using(retry_on=BankBusy).enqueue("busy")) == ("failed(error)", 1)


def test_they_are_stored_however_the_job_is_enqueued_and_survive_a_retry(app: App) -> None:
    task = app.task(name="fail", max_attempts=2, retry=3600)(fail)
    flow = app.workflow("flow")
    flow.add(task.using(retry=0), "busy", step="step")
    holder = task.using(unique="k", delay=3600).enqueue("busy")
    replaced = task.using(unique="k", on_conflict="replace", retry=0, keep_for=60).enqueue("busy")
    sql(app, "UPDATE dray_jobs SET state = 'queued'")
    by_name = app.enqueue("fail", {"how": "busy"}, retry=0, max_attempts=2)
    step = flow.enqueue().job("step")

    app.worker(concurrency=1).run_until_idle()

    assert replaced.id == holder.id
    assert holder.refresh().row.keep_us == 60_000_000
    assert [state_of(job) for job in (holder, by_name, step)] == ["failed(error)"] * 3
    assert by_name.retry()
    assert run(app, by_name) == ("failed(error)", 2)


def test_a_child_process_knows_them(hooked_app: App, kept_forker: ForkerHandle) -> None:
    job = hooked.fail.using(retry=0, max_attempts=2, retry_on=ArithmeticError).enqueue(1)
    other = hooked.fail.using(retry=0, max_attempts=2, retry_on=ValueError).enqueue(1)
    hooked_app.worker(concurrency=1).run_until_idle()

    assert [(state_of(each), each.attempt) for each in (job, other)] == [("failed(error)", 1), ("failed(error)", 2)]


def test_a_row_that_says_something_else_is_as_good_as_none(app: App) -> None:
    task = app.task(name="fail", max_attempts=2, retry=0)(fail)
    job = task.using(retry=3600).enqueue("busy")
    sql(app, "UPDATE dray_jobs SET retry = 'os.system'")

    assert run(app, job) == ("failed(error)", 2)
    for text in (
        "[",
        "7",
        "[]",
        '{"policy": 5}',
        '{"policy": ["eval", 1]}',
        '{"policy": ["fixed", -1]}',
        '{"on": 5}',
    ):
        assert decode_retry(text) == NO_RETRY


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"retry": lambda attempt: 5}, ConfigError, "a function of your own cannot be stored with a job"),  # pyright: ignore[reportUnknownLambdaType]
        ({"retry": dray.fixed}, ConfigError, r"call it, as in retry=dray.fixed"),
        ({"retry": "soon"}, TypeError, "must be a number of seconds or a timedelta, not str"),
        ({"retry": -1}, ConfigError, "between 0 and"),
        ({"retry_on": "ValueError"}, TypeError, "retry_on must be a list of exception types, not str"),
        ({"retry_on": [int]}, TypeError, "retry_on must hold exception types"),
        ({"retry_on": []}, ConfigError, "retry_on names no exception type"),
        (
            {"retry_on": [type(f"E{n}", (Exception,), {}) for n in range(51)]},
            ConfigError,
            "at most 50 exception types",
        ),
        ({"keep_for": -1}, ConfigError, "keep_for must be between 0 and"),
        ({"keep_for": "1 day"}, TypeError, "keep_for must be a number of seconds or a timedelta"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    task: Any = App("sqlite:///unused.db").task(name="fail")(fail)

    with pytest.raises(kind, match=said):
        task.using(**given)


def test_a_class_is_named_as_other_processes_know_it() -> None:
    task: Any = App("sqlite:///unused.db").task(name="fail")(fail)
    stored = functools.partial(json.loads, task.using(retry_on=[BankBusy, OSError]).job_options.fields["retry"])

    assert stored() == {"on": ["builtins.OSError", "tests.runtime.test_job_retries.BankBusy"]}
