"""The row of what a person does: written with what it tells, once, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from dray.backends import Backend
from dray.backends.database import LAST_ID
from dray.backends.store.actions import ActionRow
from dray.errors import StorageError
from dray.instants import DAY, HOUR
from dray.model.action import Action, Kind, NewAction, Verb
from dray.model.job import CancelResult
from dray.model.retention import Retention
from dray.model.schedule import Schedule
from tests.backends import beside
from tests.backends.world import World


def action(world: World, verb: Verb = "retry", kind: Kind = "job", target: str = "x", **given: Any) -> NewAction:
    return NewAction(world.ids.new(), "ann", "web", verb, kind, target, **given)


def counts(world: World, of: NewAction) -> tuple[int, int] | None:
    """Returns what an action did and what it was refused; None: there is no row."""
    found = world.backend.actions.get(of.id)
    return None if found is None else (found.done, found.refused)


def ended(world: World) -> str:
    job_id = world.enqueue()
    world.backend.jobs.cancel([job_id])
    return job_id


# One row, with what it tells


def test_a_row_says_who_did_what_to_what_when_and_how(world: World) -> None:
    job_id = ended(world)
    made = action(world, "retry", "job", job_id, note="the disk was full")
    world.clock.advance(HOUR)

    world.backend.jobs.retry([job_id], action=made)

    expected = Action(
        made.id, world.clock.now(), "ann", "web", "retry", "job", job_id, "the disk was full", done=1, refused=0
    )
    assert world.backend.actions.get(made.id) == expected
    assert world.backend.actions.newest() == [expected]


def test_what_is_done_without_an_action_leaves_no_row(world: World) -> None:
    job_id = ended(world)
    world.backend.jobs.retry([job_id])
    world.backend.jobs.cancel([job_id])
    world.backend.jobs.delete([job_id, world.ids.new()])
    world.backend.queues.pause("mail")

    assert world.backend.actions.newest() == []


def test_each_verb_counts_what_it_did_and_what_it_refused(world: World) -> None:
    jobs, gone = world.backend.jobs, world.ids.new()
    one, other, live = ended(world), ended(world), world.enqueue()
    retried, cancelled, deleted = (action(world) for _ in range(3))

    jobs.retry([one, live, gone], action=retried)
    jobs.cancel([one, other, gone], action=cancelled)
    jobs.delete([one, other, gone], action=deleted)

    assert [counts(world, each) for each in (retried, cancelled, deleted)] == [(1, 2), (1, 2), (2, 1)]


def test_an_action_on_nothing_that_is_there_leaves_a_row_too(world: World) -> None:
    made = action(world)

    assert world.backend.jobs.delete([world.ids.new()], action=made) == []

    assert counts(world, made) == (0, 1)


def test_the_parts_of_one_action_add_up_in_one_row(world: World) -> None:
    made = action(world, kind="jobs", target="state:cancelled")
    for _ in range(3):
        world.backend.jobs.retry([ended(world), world.enqueue()], action=made)

    assert counts(world, made) == (3, 3)
    assert len(world.backend.actions.newest()) == 1


def test_a_queue_that_is_paused_already_is_refused(world: World) -> None:
    first, second, third = (action(world, "pause", "queue", "mail") for _ in range(3))

    assert world.backend.queues.pause("mail", action=first)
    assert not world.backend.queues.pause("mail", action=second)
    assert world.backend.queues.resume("mail", action=third)

    assert [counts(world, each) for each in (first, second, third)] == [(1, 0), (0, 1), (1, 0)]


def test_schedules_are_paused_resumed_and_removed_with_a_row_each(world: World) -> None:
    schedules = world.backend.schedules
    schedules.upsert(Schedule("nightly", "task", every_us=HOUR, next_at=world.clock.now() + HOUR))
    made = [action(world, "pause", "schedule", "nightly") for _ in range(4)]

    assert schedules.pause("nightly", action=made[0])
    assert not schedules.pause("nightly", action=made[1])
    assert schedules.resume("nightly", world.clock.now() + HOUR, action=made[2])
    assert schedules.delete("nightly", action=made[3])

    assert [counts(world, each) for each in made] == [(1, 0), (0, 1), (1, 0), (1, 0)]


def test_a_job_that_a_person_enqueues_is_written_with_its_row(world: World) -> None:
    new = world.new()
    made = action(world, "enqueue", "job", new.id)

    world.backend.jobs.enqueue([new], action=made)

    assert world.job(new.id).state == "queued"
    assert counts(world, made) == (1, 0)


def test_an_enqueue_whose_unique_key_is_held_is_refused_and_tells_of_the_holder(world: World) -> None:
    holder = world.enqueue(unique_key="k")
    new = world.new(unique_key="k")
    made = action(world, "enqueue", "job", new.id)

    world.backend.jobs.enqueue([new], action=made)

    assert counts(world, made) == (0, 1)
    assert [each.target for each in world.backend.actions.newest()] == [holder]


def test_jobs_that_a_person_prunes_are_counted_transaction_by_transaction(world: World) -> None:
    for _ in range(30):  # more than the first statement takes
        ended(world)
    kept = world.enqueue()
    world.clock.advance(DAY)
    made = action(world, "prune", "database", "here")

    removed = sum(step.jobs for step in world.backend.history.prune_steps(Retention(cancelled_us=HOUR), made))

    assert removed == 30
    assert counts(world, made) == (30, 0)
    assert world.job(kept).state == "queued"


# All or nothing


def acts(world: World) -> dict[str, Callable[[NewAction], Any]]:
    """Returns each verb with something that it can do."""
    jobs, queues, schedules = world.backend.jobs, world.backend.queues, world.backend.schedules
    over, live, old, new = ended(world), world.enqueue(), ended(world), world.new()
    queues.pause("held")
    later = world.clock.now() + HOUR
    for name in ("going", "paused", "going-too"):
        schedules.upsert(Schedule(name, "task", every_us=HOUR, next_at=later))
    schedules.pause("paused")
    return {
        "retry": lambda made: jobs.retry([over], action=made),
        "cancel": lambda made: jobs.cancel([live], action=made),
        "delete": lambda made: jobs.delete([old], action=made),
        "enqueue": lambda made: jobs.enqueue([new], action=made),
        "pause": lambda made: queues.pause("mail", action=made),
        "resume": lambda made: queues.resume("held", action=made),
        "schedule pause": lambda made: schedules.pause("going", action=made),
        "schedule resume": lambda made: schedules.resume("paused", later, action=made),
        "remove": lambda made: schedules.delete("going-too", action=made),
    }


VERBS = [
    *("retry", "cancel", "delete", "enqueue", "pause", "resume"),
    *("schedule pause", "schedule resume", "remove"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_what_cannot_be_noted_is_not_done(world: World, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act = acts(world)[verb]
    before = snapshot(world.backend)

    def refuse(*_: object) -> None:
        raise StorageError("the row cannot be written")

    monkeypatch.setattr(ActionRow, "add", refuse)
    with pytest.raises(StorageError, match="cannot be written"):
        act(action(world))

    assert snapshot(world.backend) == before


def snapshot(backend: Backend) -> list[Any]:
    return [backend.jobs.newest(), backend.queues.all(), backend.schedules.all(), backend.actions.newest()]


@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_answer_does_not_count_twice(server: World, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act, made = acts(server)[verb], action(server)
    beside.lose_next_answer(server.backend, monkeypatch)

    answer = act(made)

    assert answer not in (False, [])
    assert CancelResult.FINAL not in (answer.values() if isinstance(answer, dict) else ())
    assert counts(server, made) == (1, 0)


def test_a_prune_whose_answer_was_lost_counts_what_both_tries_removed(
    server: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        ended(server)
    server.clock.advance(DAY)
    made = action(server, "prune", "database", "here")
    steps = server.backend.history.prune_steps(Retention(cancelled_us=HOUR), made)
    beside.lose_next_answer(server.backend, monkeypatch)

    assert list(steps)

    assert server.backend.jobs.newest() == []
    assert counts(server, made) == (3, 0)


# Lists


def test_actions_are_listed_newest_first_page_by_page(world: World) -> None:
    made = [action(world, target=str(number)) for number in range(5)]
    for each in made:
        world.backend.actions.note(each)

    first = world.backend.actions.newest(2)
    rest = world.backend.actions.newest(10, first[-1].id)

    assert [each.target for each in (*first, *rest)] == ["4", "3", "2", "1", "0"]


def test_actions_are_listed_by_kind_and_by_what_they_were_about(world: World) -> None:
    for made in (
        action(world, "pause", "queue", "mail"),
        action(world, "pause", "queue", "default"),
        action(world, "pause", "schedule", "mail"),
    ):
        world.backend.actions.note(made)

    def listed(**given: Any) -> list[tuple[str, str]]:
        return [(each.kind, each.target) for each in world.backend.actions.newest(**given)]

    assert listed(kind="queue") == [("queue", "default"), ("queue", "mail")]
    assert listed(kind="schedule", target="mail") == [("schedule", "mail")]
    assert listed(kind="job") == []
    with pytest.raises(ValueError, match="goes with its kind"):
        listed(target="mail")


def test_old_actions_are_removed_oldest_first(world: World) -> None:
    for number in range(3):
        world.backend.actions.note(action(world, target=str(number)))
        world.clock.advance(DAY)
    cutoff = world.clock.now() - DAY

    assert world.backend.actions.prune(cutoff, 1) == 1
    assert world.backend.actions.prune(cutoff, 10) == 1
    assert world.backend.actions.prune(cutoff, 10) == 0

    assert [each.target for each in world.backend.actions.newest()] == ["2"]


PLANS: dict[str, tuple[dict[str, Any], str, str]] = {
    "action_list": ({"kind": None, "limit": 100}, "dray_actions USING PRIMARY KEY (id<?)", "dray_actions_pkey"),
    "action_list_of": (
        {"kind": "queue", "target": "mail", "limit": 100},
        "INDEX dray_actions_target (kind=? AND target=? AND id<?)",
        "dray_actions_target",
    ),
    "action_get": ({}, "dray_actions USING PRIMARY KEY (id=?)", "dray_actions_pkey"),
    "action_prune": ({"limit": 100}, "dray_actions USING PRIMARY KEY (id=?)", "dray_actions_pkey"),
}


MANY = """
INSERT INTO dray_actions (id, at, who, via, verb, kind, target, done, refused)
SELECT gen_random_uuid(), now(), 'ann', 'cli', 'pause', 'queue', n::text, 1, 0 FROM generate_series(1, 5000) AS n
"""


@pytest.mark.parametrize("name", PLANS)
def test_a_list_reads_no_more_actions_than_it_shows(world: World, url: str, name: str) -> None:
    given, on_sqlite, on_postgres = PLANS[name]
    statement = world.backend.db.read(lambda tx: tx.catalogue[name])
    values = {"before": 1 if name == "action_prune" else LAST_ID, "id": world.ids.new(), **given}
    used = {parameter: values.get(parameter) for parameter in statement.parameters}
    with beside.connect(url) as connection:
        if isinstance(connection, sqlite3.Connection):
            found = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.bind(used))
            plan, wanted, unwanted = [row[3] for row in found], on_sqlite, "TEMP B-TREE"
        else:
            connection.execute("SET enable_seqscan = off")  # as on Dray's own connections
            connection.execute(MANY)
            connection.execute("ANALYZE dray_actions")
            found = connection.execute(f"EXPLAIN {statement.text}".encode(), used)
            plan, wanted, unwanted = [str(row[0]) for row in found], on_postgres, "Sort"
    assert any(wanted in step for step in plan), plan
    assert not [step for step in plan if unwanted in step or "Seq Scan" in step], plan
