"""Jobs that do not start in time: a worker cancels them on time, and their children are updated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.app import App
from dray.errors import JobCancelled

PATIENCE = 30
LATE = timedelta(seconds=5)  # on a busy machine; the duty checks at least every 2 s


def work(value: int = 0) -> int:
    return value


def test_a_job_that_nobody_starts_in_time_is_cancelled_on_time_and_its_children_by_their_policy(app: App) -> None:
    task = app.task(name="work")(work)
    unserved = task.using(queue="unserved", expires_in=0.3).enqueue()
    cancelled = task.using(after=unserved).enqueue(1)
    runs = task.using(after=unserved, on_parent_failure="run").enqueue(2)
    held = task.using(after=unserved, on_parent_failure="hold").enqueue(3)

    with app.worker(queues="default"):
        with pytest.raises(JobCancelled, match="had not started in time") as caught:
            unserved.result(timeout=PATIENCE)
        assert runs.result(timeout=PATIENCE) == 2
        with pytest.raises(JobCancelled, match="a job that it depends on"):
            cancelled.result(timeout=PATIENCE)

    assert (caught.value.reason, unserved.state, unserved.reason, unserved.attempt) == (
        "expired",
        "cancelled",
        "expired",
        0,
    )
    assert unserved.finished_at is not None
    assert unserved.expires_at is not None
    assert timedelta(0) <= unserved.finished_at - unserved.expires_at < LATE
    assert held.refresh().state == "waiting"
    assert app.jobs(state="expired") == [unserved]


def test_a_job_that_waits_for_its_parent_or_its_time_expires_as_well(app: App) -> None:
    task = app.task(name="work")(work)
    parent = task.using(queue="unserved").enqueue()
    waiting = task.using(after=parent, expires_in=0.3).enqueue()
    scheduled = task.using(run_at=datetime.now(UTC) + timedelta(hours=1), expires_in=0.3).enqueue()

    with app.worker(queues="default"):
        for job in (waiting, scheduled):
            with pytest.raises(JobCancelled, match="had not started in time"):
                job.result(timeout=PATIENCE)

    assert parent.refresh().state == "queued"


def test_what_has_expired_before_a_worker_comes_is_never_started(app: App) -> None:
    started: list[int] = []

    def start(value: int) -> None:
        started.append(value)

    task = app.task(name="work")(start)
    late = task.using(expires_at=datetime.now(UTC) - timedelta(seconds=1)).enqueue(1)
    in_time = task.using(expires_in=3600).enqueue(2)

    app.worker().run_until_idle()

    assert started == [2]
    assert [late.refresh().reason, in_time.refresh().state] == ["expired", "completed"]
