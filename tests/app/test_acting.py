"""What people do goes through `ops/acting.py`: it is done or refused with a reason, and leaves one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dray
from dray import App, ConfigError, Job, UnknownJob, UnknownSchedule, UnknownWorkflow
from dray.app_interface import core_of
from dray.core import AppCore
from dray.errors import InvalidName
from dray.instants import DAY
from dray.model.action import Action, By
from dray.ops import acting
from tests.app.hands import Hands
from tests.manual_clock import ManualClock

ANN = By("ann", "web")


@pytest.fixture
def core(app: App) -> AppCore:
    core_of(app).backend.migrate()
    return core_of(app)


def rows(core: AppCore) -> list[Action]:
    """Returns what was done, oldest first."""
    return core.backend.actions.newest()[::-1]


def only(core: AppCore) -> tuple[str, str, str, str | None, int, int]:
    """Returns what the one row says, without who and when."""
    (row,) = rows(core)
    assert (row.who, row.via) == ("ann", "web")
    return row.verb, row.kind, row.target, row.note, row.done, row.refused


def failed(app: App, hands: Hands, **using: Any) -> Job[Any]:
    job = app.enqueue("task", max_attempts=1, **using)
    hands.fail(job)
    return job


# Jobs


def test_a_retried_job_starts_over_and_leaves_one_row(app: App, core: AppCore, hands: Hands) -> None:
    job = failed(app, hands)

    assert acting.retry(core, [job.id], ANN) == ([job.id], {})

    assert job.refresh().state == "queued"
    assert only(core) == ("retry", "job", job.id, None, 1, 0)


def test_a_retry_that_is_refused_says_why_and_leaves_a_row(app: App, core: AppCore, hands: Hands) -> None:
    live = app.enqueue("task")
    parent = app.enqueue("parent", max_attempts=1)
    child = app.enqueue("child", after=[parent])
    hands.fail(parent)
    gone = core.new_id()

    acted = acting.retry(core, [live.id, child.id, gone], ANN)

    assert acted.done == []
    assert acted.refused[live.id] == "it has not ended: it is queued"
    assert acted.refused[gone] == "it is gone"
    assert parent.id in acted.refused[child.id]
    assert only(core) == ("retry", "jobs", f"{live.id} {child.id} {gone}", None, 0, 3)


def test_a_job_and_the_parent_that_it_was_cancelled_with_are_retried_in_any_order(
    app: App, core: AppCore, hands: Hands
) -> None:
    parent = app.enqueue("parent", max_attempts=1)
    child = app.enqueue("child", after=[parent])
    hands.fail(parent)

    acted = acting.retry(core, [child.id, parent.id], ANN)

    assert (sorted(acted.done), acted.refused) == (sorted([parent.id, child.id]), {})
    assert (parent.refresh().state, child.refresh().state) == ("queued", "waiting")


def test_cancelled_jobs_are_counted_and_those_that_had_ended_are_refused(
    app: App, core: AppCore, hands: Hands
) -> None:
    over, running, queued = failed(app, hands), app.enqueue("task"), app.enqueue("other")
    hands.claim(running)

    acted = acting.cancel(core, [over.id, running.id, queued.id], ANN)

    assert acted == ([running.id, queued.id], {over.id: "it had ended already"})
    assert only(core)[-2:] == (2, 1)


def test_deleted_jobs_are_gone_and_a_running_one_stays(app: App, core: AppCore, hands: Hands) -> None:
    over, running, gone = failed(app, hands), app.enqueue("task"), core.new_id()
    hands.claim(running)

    acted = acting.delete(core, [over.id, running.id, gone], ANN)

    assert acted == ([over.id], {running.id: acting.STAYS, gone: "it is gone"})
    assert only(core)[-2:] == (1, 2)


@pytest.mark.parametrize("act", [acting.retry, acting.cancel, acting.delete])
def test_an_id_may_be_written_in_capitals_and_given_twice(app: App, core: AppCore, act: Callable[..., Any]) -> None:
    job = app.enqueue("task")
    if act is acting.retry:
        app.cancel(job)

    assert act(core, [job.id.upper(), job.id], ANN) == ([job.id], {})

    assert only(core)[1:3] == ("job", job.id)


@pytest.mark.parametrize("act", [acting.retry, acting.cancel, acting.delete])
def test_what_is_no_id_is_refused_before_anything_is_done(app: App, core: AppCore, act: Callable[..., Any]) -> None:
    job = app.enqueue("task")

    with pytest.raises(UnknownJob, match=r"DROP TABLE.* is no job's id"):
        act(core, [job.id, "'); DROP TABLE"], ANN)

    assert job.refresh().state == "queued"
    assert rows(core) == []


def test_the_chunks_of_a_bulk_action_are_one_row_with_the_words_of_its_search(app: App, core: AppCore) -> None:
    jobs, action_id = [app.enqueue("task") for _ in range(4)], core.new_id()
    for part in (jobs[:3], jobs[3:], jobs[:1]):
        acting.cancel(core, [job.id for job in part], ANN, action_id=action_id, target="state:queued task:mail.*")

    assert only(core) == ("cancel", "jobs", "state:queued task:mail.*", None, 4, 1)
    assert rows(core)[0].id == action_id


def test_many_jobs_take_several_transactions_and_one_row(
    app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "_CHUNK", 2)
    jobs = [app.enqueue("task") for _ in range(5)]

    acted = acting.cancel(core, [job.id for job in jobs], ANN)

    assert acted.done == [job.id for job in jobs]
    assert only(core)[-2:] == (5, 0)


def test_reasons_are_looked_up_for_a_few_of_many_refused_jobs(
    app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "_LOOKED_UP", 1)
    jobs = [app.enqueue("task") for _ in range(2)]

    refused = acting.retry(core, [job.id for job in jobs], ANN).refused

    assert refused[jobs[0].id] == "it has not ended: it is queued"
    assert refused[jobs[1].id].startswith("it has not ended, a job that it runs after")


def test_an_action_on_no_job_at_all_leaves_a_row(core: AppCore) -> None:
    assert acting.retry(core, [], ANN, target="state:failed") == ([], {})

    assert only(core) == ("retry", "jobs", "state:failed", None, 0, 0)


def test_of_many_ids_the_row_shows_the_first(core: AppCore) -> None:
    ids = [core.new_id() for _ in range(2_000)]

    acting.delete(core, ids, ANN)

    (row,) = rows(core)
    assert row.target == " ".join(ids[:20]) + " and 1,980 more"
    assert (row.done, row.refused) == (0, 2_000)


def test_an_enqueued_job_is_checked_as_app_enqueue_does(app: App, core: AppCore) -> None:
    @app.task(name="mail.send")
    def send(to: str) -> None: ...

    job = acting.enqueue(core, "mail.send", {"to": "bob"}, {"queue": "mail", "priority": 5}, ANN)

    assert (job.refresh().queue, job.priority, job.args) == ("mail", 5, {"to": "bob"})
    assert only(core) == ("enqueue", "job", job.id, "mail.send", 1, 0)
    for wrong, options, error in (
        ({"of": 1}, {}, TypeError),
        ({"to": "bob"}, {"colour": "red"}, TypeError),
        ({"to": "bob"}, {"connection": object()}, ConfigError),
    ):
        with pytest.raises(error):
            acting.enqueue(core, "mail.send", wrong, options, ANN)
    assert len(rows(core)) == 1


def test_a_revealed_argument_is_shown_and_noted(app: App, core: AppCore) -> None:
    @app.task(name="mail.send", redact=["token"])
    def send(to: str, token: str) -> None: ...

    job = send.enqueue("bob", token="s3cret")
    assert job.args == {"to": "bob", "token": "***"}

    assert acting.reveal(core, job.id, ANN) == {"to": "bob", "token": "s3cret"}

    assert only(core) == ("reveal", "job", job.id, "mail.send", 1, 0)
    assert "s3cret" not in repr(rows(core))


def test_nothing_is_revealed_of_a_job_that_is_not_there(core: AppCore) -> None:
    with pytest.raises(UnknownJob):
        acting.reveal(core, core.new_id(), ANN)

    assert rows(core) == []


def test_nothing_is_revealed_that_cannot_be_noted(app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app.enqueue("task", {"token": "s3cret"})

    def refuse(*_: object, **__: object) -> None:
        raise dray.StorageError("the row cannot be written")

    monkeypatch.setattr(core.backend.actions, "note", refuse)
    with pytest.raises(dray.StorageError):
        acting.reveal(core, job.id, ANN)


# Queues


def test_a_queue_is_paused_with_a_note_and_resumed(app: App, core: AppCore) -> None:
    assert acting.pause_queue(core, "mail", ANN, note="the printer burns")
    assert app.queue("mail").is_paused
    assert not acting.pause_queue(core, "mail", ANN)
    assert acting.resume_queue(core, "mail", ANN)

    told = [(row.verb, row.target, row.note, row.done, row.refused) for row in rows(core)]
    assert told == [
        ("pause", "mail", "the printer burns", 1, 0),
        ("pause", "mail", None, 0, 1),
        ("resume", "mail", None, 1, 0),
    ]


@pytest.mark.parametrize("act", [acting.pause_queue, acting.resume_queue])
def test_a_queue_whose_name_cannot_be_leaves_no_row(core: AppCore, act: Callable[..., Any]) -> None:
    with pytest.raises(InvalidName):
        act(core, "no such\nname", ANN)

    assert rows(core) == []


# Schedules


def test_a_schedule_is_paused_resumed_run_and_removed(app: App, core: AppCore) -> None:
    app.schedule("nightly", "task", every=3600)

    assert acting.pause_schedule(core, "nightly", ANN)
    assert acting.resume_schedule(core, "nightly", ANN)
    job = acting.run_schedule(core, "nightly", ANN)
    acting.remove_schedule(core, "nightly", ANN)

    assert (job.refresh().state, job.schedule) == ("queued", "nightly")
    assert app.schedules() == []
    assert [(row.verb, row.kind, row.target, row.done) for row in rows(core)] == [
        (verb, "schedule", "nightly", 1) for verb in ("pause", "resume", "run", "remove")
    ]
    assert rows(core)[2].note == f"job {job.id}"


@pytest.mark.parametrize(
    "act", [acting.pause_schedule, acting.resume_schedule, acting.run_schedule, acting.remove_schedule]
)
def test_a_schedule_that_is_not_there_leaves_no_row(core: AppCore, act: Callable[..., Any]) -> None:
    with pytest.raises(UnknownSchedule):
        act(core, "nightly", ANN)

    assert rows(core) == []


# Workflows


def test_a_workflow_is_cancelled_and_retried_as_one_action_each(app: App, core: AppCore) -> None:
    @app.task(name="work")
    def work() -> None: ...

    workflow = app.workflow("etl")
    first = workflow.add(work, step="load")
    workflow.add(work, step="clean", after=[first])
    run = workflow.enqueue()

    cancelled = acting.cancel_workflow(core, run.id, ANN)
    none = acting.cancel_workflow(core, run.id, ANN)
    retried = acting.retry_workflow(core, run.id, ANN, cancelled=True)

    assert (len(cancelled.done), none.done, retried.done) == (2, [], [run.job("load").id, run.job("clean").id])
    assert [(row.verb, row.kind, row.target, row.done) for row in rows(core)] == [
        ("cancel", "workflow", run.id, 2),
        ("cancel", "workflow", run.id, 0),
        ("retry", "workflow", run.id, 2),
    ]


@pytest.mark.parametrize("act", [acting.cancel_workflow, acting.retry_workflow])
def test_a_workflow_that_is_not_there_leaves_no_row(core: AppCore, act: Callable[..., Any]) -> None:
    for unknown in (core.new_id(), "nonsense"):
        with pytest.raises(UnknownWorkflow):
            act(core, unknown, ANN)

    assert rows(core) == []


# The database


def test_pruned_jobs_are_counted_in_one_row(app: App, core: AppCore, clock: ManualClock) -> None:
    for _ in range(3):
        app.cancel(app.enqueue("task"))
    clock.advance(2 * DAY)
    told: list[int] = []

    assert acting.prune(core, 86_400, {"cancelled"}, ANN, told.append) == 3

    assert told[-1] == 3
    verb, kind, target, note, *counts = only(core)
    assert (verb, kind, target, counts) == ("prune", "database", app.place, [3, 0])
    assert note == "cancelled jobs older than 24h"


# Who, and programs


def test_what_a_program_does_leaves_no_row(app: App, core: AppCore) -> None:
    job = app.enqueue("task")
    app.pause("mail")
    app.resume("mail")
    app.schedule("nightly", "task", every=3600)
    app.run_schedule("nightly")
    app.pause_schedule("nightly")
    app.remove_schedule("nightly")
    job.cancel()
    job.retry()
    app.prune()
    app.delete(job)

    assert rows(core) == []


def test_a_person_has_a_name_that_fits() -> None:
    with pytest.raises(ConfigError, match="needs the name"):
        By("  ", "cli")
    assert len(By("x" * 10_000, "web").who.encode()) <= 200
    assert By("ann\0", "web").who == "ann\ufffd"


def test_a_note_that_is_too_long_or_holds_a_password_is_cut(core: AppCore) -> None:
    acting.pause_queue(core, "mail", ANN, note="see postgresql://ann:s3cret@db/jobs " + "x" * 10_000)

    note = only(core)[3]
    assert note is not None
    assert "s3cret" not in note
    assert len(note.encode()) <= 1024
