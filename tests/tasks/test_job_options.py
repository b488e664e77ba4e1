"""The options of one job: what `using` accepts, what it refuses, and what is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from dray.errors import ConfigError, InvalidName
from dray.instants import SECOND, from_datetime
from dray.model.new_job import NewJob
from dray.task.job_options import JobOptions, prepare
from dray.task.options import TaskOptions
from dray.task.task import define
from tests.tasks.fakes import Handle, add, options

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
PARENT = "01890000-0000-7000-8000-000000000001"


def prepared(**given: Any) -> NewJob:
    return prepare(PARENT, options(add, name="shop.add"), '{"a":1}', JobOptions.of(given))


def test_using_says_how_one_job_is_to_be_run(app: Any) -> None:
    connection = object()
    task = define(add, app, name="shop.add", queue="q", max_attempts=9)

    task.using(
        queue="slow",
        priority=5,
        run_at=WHEN,
        expires_at=WHEN + timedelta(hours=1),
        unique="report:42",
        unique_scope="queued",
        unique_for=60,
        on_conflict="replace",
        max_attempts=1,
        timeout=5,
        after=[Handle(NewJob(id=PARENT, task="x")), PARENT.upper()],
        on_parent_failure="run",
        name="the first: ä",
        tags=["x", "y", "x"],
        connection=connection,
    ).enqueue(1)

    [[written]] = app.batches
    assert written == NewJob(
        id=written.id,
        task="shop.add",
        queue="slow",
        args='{"a":1}',
        priority=5,
        run_at=from_datetime(WHEN),
        expires_at=from_datetime(WHEN) + 3600 * SECOND,
        unique_key="report:42",
        unique_scope="queued",
        unique_us=60 * SECOND,
        on_conflict="replace",
        max_attempts=1,
        timeout=5.0,
        parents=(PARENT,),
        on_parent_failure="run",
        name="the first: ä",
        tags=("x", "y"),
    )
    assert app.connections == [connection]


def test_durations_are_seconds_or_timedeltas() -> None:
    assert prepared(delay=1.5).delay_us == 1_500_000
    assert prepared(delay=timedelta(minutes=1)).delay_us == 60 * SECOND
    assert prepared(expires_in=3600).expires_us == 3600 * SECOND
    assert prepared(timeout=timedelta(seconds=2)).timeout == 2.0


def test_what_is_not_said_is_as_the_task_has_it() -> None:
    nothing = dict.fromkeys(["queue", "priority", "delay", "run_at", "unique", "after", "tags", "connection"])
    assert prepared(**nothing) == prepared() == NewJob(id=PARENT, task="shop.add", args='{"a":1}')
    assert prepared(unique=False) == prepared()


def test_a_time_in_the_past_is_taken() -> None:
    past = datetime(1999, 1, 1, tzinfo=UTC)
    assert prepared(run_at=past).run_at == from_datetime(past)


def test_unique_by_its_arguments_does_not_depend_on_their_order() -> None:
    task = options(name="shop.add")

    def key(args: Mapping[str, Any], of: TaskOptions = task) -> str | None:
        return prepare(PARENT, of, json.dumps(args), JobOptions.of({"unique": True})).unique_key

    same = key({"a": {"x": 1, "y": "é"}, "b": 2})
    assert same == key({"b": 2, "a": {"y": "é", "x": 1}})
    assert same is not None
    assert same.startswith("shop.add:")
    assert len(same) == len("shop.add:") + 64
    assert key({"a": 1}) != key({"a": 2})
    assert key({"a": 1}) != key({"a": 1}, options(name="shop.sub"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"countdown": 5}, TypeError, r"using\(\) has no option 'countdown'; did you mean delay\?"),
        ({"quue": "a"}, TypeError, r"did you mean queue\?"),
        ({"queue": ""}, InvalidName, "queue name"),
        ({"priority": 1.5}, TypeError, "whole number"),
        ({"delay": -1}, ConfigError, "delay must be between 0 and"),
        ({"delay": timedelta(seconds=-1)}, ConfigError, "delay must be between 0 and"),
        ({"delay": math.nan}, ConfigError, "delay must be between 0 and"),
        ({"delay": 10**9}, ConfigError, "ten years"),
        ({"delay": "5"}, TypeError, "delay must be a number of seconds or a timedelta"),
        ({"run_at": datetime(2026, 1, 1)}, ConfigError, r"run_at has no time zone.*datetime.now\(UTC\)"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, TypeError, "run_at must be a datetime, not str"),
        ({"run_at": date(2026, 1, 1)}, TypeError, "run_at must be a datetime, not date"),
        ({"delay": 1, "run_at": WHEN}, ConfigError, "delay and run_at say the same in two ways"),
        ({"expires_at": datetime(2026, 1, 1)}, ConfigError, "expires_at has no time zone"),  # noqa: DTZ001
        ({"expires_in": 0}, ConfigError, "expires_in must be more than 0"),
        ({"expires_in": 1, "expires_at": WHEN}, ConfigError, "expires_at and expires_in say the same"),
        ({"expires_in": 5, "delay": 5}, ConfigError, "expire before it may run"),
        ({"expires_at": WHEN, "run_at": WHEN}, ConfigError, "expire before it may run"),
        ({"unique": ""}, ConfigError, "unique must have 1 to 500 characters"),
        ({"unique": "a\0b"}, ConfigError, "unique .* must be one line"),
        ({"unique": 5}, TypeError, "unique must be a string"),
        ({"unique_scope": "live"}, ConfigError, "unique_scope means nothing without unique"),
        ({"unique": False, "unique_for": 5}, ConfigError, "unique_for means nothing without unique"),
        ({"on_conflict": "replace"}, ConfigError, "on_conflict means nothing without unique"),
        ({"unique": True, "unique_scope": "for ever"}, ConfigError, "unique_scope must be one of live, queued"),
        ({"unique": True, "unique_for": 0}, ConfigError, "unique_for must be more than 0"),
        ({"unique": True, "on_conflict": "drop"}, ConfigError, "must be one of keep, replace, reschedule"),
        ({"max_attempts": 0}, ConfigError, "max_attempts must be between 1"),
        ({"timeout": math.nan}, ConfigError, "timeout must be more than 0"),
        ({"after": ["short"]}, ConfigError, "'short' is no job id; pass the job, or its whole id"),
        ({"after": [5]}, TypeError, "after takes jobs or their ids, not int"),
        ({"after": 5}, TypeError, "after must be a list of jobs"),
        ({"on_parent_failure": "cry"}, ConfigError, "must be one of cancel, run, hold"),
        ({"name": "a\x1bb"}, ConfigError, "name .* must be one line"),
        ({"name": "x" * 201}, ConfigError, "1 to 200 characters"),
        ({"tags": "x"}, TypeError, "tags must be a list of tags, not str"),
        ({"tags": ["a b"]}, InvalidName, "tag name 'a b'"),
        ({"tags": [str(n) for n in range(21)]}, ConfigError, "at most 20 tags, not 21"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:40],
)
def test_an_option_of_a_job_that_cannot_work_is_refused(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        JobOptions.of(given)


def test_a_single_parent_need_not_be_in_a_list() -> None:
    assert prepared(after=PARENT).parents == (PARENT,)
    assert prepared(after=Handle(NewJob(id=PARENT, task="x"))).parents == (PARENT,)
