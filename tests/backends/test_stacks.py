"""Requests for the stack of a body, and the replies, as rows."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from dray.backends import open_backend
from dray.backends.statements import Catalogue
from dray.backends.store.stacks import Asked
from dray.instants import SECOND
from dray.maintenance.cleaning import STACKS_KEPT_US, Pruner
from dray.model.job import Demand
from tests.backends.world import World

NOTHING = Demand((), (), 0)


def asked(world: World, worker: str) -> tuple[Asked, ...]:
    return world.backend.work.look(worker, NOTHING).asked


def test_a_worker_is_told_of_questions_about_what_it_runs(world: World) -> None:
    worker, other = world.worker(), world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    stack_id = world.ids.new()

    assert world.backend.stacks.ask(stack_id, claim.id, claim.claim)

    assert asked(world, worker) == (Asked(stack_id, claim.id, claim.claim),)
    assert asked(world, other) == ()


def test_nobody_is_asked_about_a_job_that_does_not_run_under_that_claim(world: World) -> None:
    worker = world.worker()
    job_id = world.enqueue()
    ask = world.backend.stacks.ask
    assert not ask(world.ids.new(), job_id, 0)
    claim = world.claim_one(worker)
    assert not ask(world.ids.new(), claim.id, claim.claim + 1)
    assert not ask(world.ids.new(), world.ids.new(), claim.claim)

    world.complete(worker, claim)
    assert not ask(world.ids.new(), claim.id, claim.claim)

    assert asked(world, worker) == ()


def test_an_answer_is_read_by_who_asked_and_ends_the_question(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    first, second = world.ids.new(), world.ids.new()
    for stack_id in (first, second):
        world.backend.stacks.ask(stack_id, claim.id, claim.claim)
    assert world.backend.stacks.read(first) is None

    assert world.backend.stacks.answer(worker, first, "here ü\n")

    assert world.backend.stacks.read(first) == "here ü\n"
    assert world.backend.stacks.read(second) is None
    assert [each.id for each in asked(world, worker)] == [second]


def test_only_the_worker_that_was_asked_answers_and_once(world: World) -> None:
    worker, other = world.worker(), world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    stack_id = world.ids.new()
    world.backend.stacks.ask(stack_id, claim.id, claim.claim)

    assert not world.backend.stacks.answer(other, stack_id, "not mine")
    assert world.backend.stacks.answer(worker, stack_id, "")
    assert not world.backend.stacks.answer(worker, stack_id, "again")

    assert world.backend.stacks.read(stack_id) == ""


def test_a_question_that_was_taken_back_is_gone(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    stack_id = world.ids.new()
    world.backend.stacks.ask(stack_id, claim.id, claim.claim)

    world.backend.stacks.drop(stack_id)
    world.backend.stacks.drop(stack_id)

    assert asked(world, worker) == ()
    assert not world.backend.stacks.answer(worker, stack_id, "late")
    assert world.backend.stacks.read(stack_id) is None


def test_a_look_tells_of_ten_questions_at_most(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    for _ in range(12):
        world.backend.stacks.ask(world.ids.new(), claim.id, claim.claim)

    assert len(asked(world, worker)) == 10


def test_old_questions_are_removed_a_bounded_number_at_a_time(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    for _ in range(3):
        world.backend.stacks.ask(world.ids.new(), claim.id, claim.claim)
    world.clock.advance(SECOND)
    newest = world.ids.new()
    world.backend.stacks.ask(newest, claim.id, claim.claim)
    now = world.clock.now()

    assert world.backend.stacks.prune(now, 2) == 2
    assert world.backend.stacks.prune(now, 2) == 1
    assert world.backend.stacks.prune(now, 2) == 0

    assert [each.id for each in asked(world, worker)] == [newest]


def test_the_pruner_removes_what_an_asker_left_behind(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    world.backend.stacks.ask(world.ids.new(), claim.id, claim.claim)
    pruner = Pruner(world.backend, random.Random(1))

    pruner.tick()
    assert len(asked(world, worker)) == 1
    world.clock.advance(STACKS_KEPT_US + 1)
    pruner.tick()

    assert asked(world, worker) == ()


def test_a_job_can_be_removed_while_somebody_asks_about_it(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    world.backend.stacks.ask(world.ids.new(), claim.id, claim.claim)
    world.complete(worker, claim)

    assert world.backend.jobs.delete([claim.id]) == [claim.id]


@pytest.mark.parametrize("analyzed", [False, True], ids=["as made", "analyzed"])
def test_a_look_finds_questions_by_their_index(tmp_path: Path, analyzed: bool) -> None:
    path = tmp_path / "jobs.db"
    backend = open_backend(f"sqlite:///{path}")
    backend.migrate()
    backend.close()
    statement = Catalogue("sqlite")["job_look"]
    connection = sqlite3.connect(path)
    if analyzed:
        connection.execute("ANALYZE")
    values = statement.arranged((None,) * len(statement.parameters))
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values).fetchall()
    connection.close()

    assert [row[3] for row in plan if "dray_stacks" in row[3]] == [
        "SEARCH dray_stacks USING INDEX dray_stacks_asked (worker_id=?)"
    ]
