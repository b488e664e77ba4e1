"""Workflows in storage: written as a whole, read, and extended by their own steps as these end."""

from __future__ import annotations

from typing import Any

import pytest

from dray.errors import GraphError, UnknownJob
from dray.model import settlement as model
from dray.model.job import Claim, State
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends.world import World


class Graph:
    """A workflow with one step, `first`, claimed by a worker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.id = world.ids.new()
        first = self.step("first", max_attempts=3)
        world.backend.jobs.enqueue([first], workflow=Workflow(self.id, "etl", 0))
        self.worker = world.worker()
        self.claim = world.claim_one(self.worker)

    def step(self, name: str | None = None, **options: Any) -> NewJob:
        return self.world.new(workflow_id=self.id, step=name, **options)

    def completion(self, claim: Claim | None = None) -> Settlement:
        now = self.world.clock.steady()
        return model.completed(claim or self.claim, now, now, '"data"')

    @property
    def counts(self) -> dict[str, int]:
        found = self.world.backend.workflows.get(self.id)
        assert found is not None
        return found[1].counts


@pytest.fixture
def graph(world: World) -> Graph:
    return Graph(world)


def test_steps_that_a_job_adds_are_written_with_its_completion(world: World, graph: Graph) -> None:
    second = graph.step("second", parents=(graph.claim.id,), queue="new")
    third = graph.step("third", parents=(second.id,))
    settled = world.backend.work.grow(graph.worker, graph.completion(), [second, third])
    assert not any(settled)
    assert [world.job(i).state for i in (graph.claim.id, second.id, third.id)] == ["completed", "queued", "waiting"]
    assert "new" in [queue.name for queue in world.backend.queues.all()]


def test_a_lost_claim_writes_neither_outcome_nor_steps(world: World, graph: Graph) -> None:
    late = graph.completion()
    world.bury(graph.worker)
    settled = world.backend.work.grow(graph.worker, late, [graph.step("second")])
    assert settled.stale == [graph.claim.id]
    assert sum(graph.counts.values()) == 1


def test_the_same_growth_written_twice_is_there_once(world: World, graph: Graph) -> None:
    second = graph.step("second")
    world.backend.work.grow(graph.worker, graph.completion(), [second])
    settled = world.backend.work.grow(graph.worker, graph.completion(), [second])
    assert settled.already == [graph.claim.id]
    assert graph.counts == {"completed": 1, "queued": 1}


def test_a_job_that_is_run_again_does_not_double_its_steps(world: World, graph: Graph) -> None:
    second = graph.step("second")
    world.backend.work.grow(graph.worker, graph.completion(), [second])
    world.backend.jobs.retry([graph.claim.id])
    again = next(claim for claim in world.claim(graph.worker, 2) if claim.id == graph.claim.id)
    assert not any(world.backend.work.grow(graph.worker, graph.completion(again), [second]))
    assert sum(graph.counts.values()) == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"step": "first"}, GraphError),
        ({"step": "second", "parents": ("00000000-0000-7000-8000-000000000000",)}, UnknownJob),
    ],
)
def test_steps_that_cannot_be_written_leave_the_job_running(
    world: World, graph: Graph, wrong: dict[str, Any], error: type[Exception]
) -> None:
    new = [graph.step("fine"), world.new(workflow_id=graph.id, **wrong)]
    with pytest.raises(error):
        world.backend.work.grow(graph.worker, graph.completion(), new)
    assert graph.counts == {"running": 1}


def test_steps_added_by_a_job_that_was_asked_to_stop_are_cancelled(world: World, graph: Graph) -> None:
    world.backend.jobs.cancel([graph.claim.id])
    second = graph.step("second")
    third = graph.step("third", parents=(second.id,))
    world.backend.work.grow(graph.worker, graph.completion(), [second, third])
    assert graph.counts == {"completed": 1, "cancelled": 2}


def test_a_workflow_is_written_whole_or_not_at_all(world: World) -> None:
    holder = world.enqueue(unique_key="taken")
    workflow = Workflow(world.ids.new(), "etl", 0)
    steps = [world.new(workflow_id=workflow.id, step="a"), world.new(workflow_id=workflow.id, unique_key="taken")]
    with pytest.raises(GraphError, match=holder):
        world.backend.jobs.enqueue(steps, workflow=workflow)
    assert world.backend.workflows.get(workflow.id) is None


def test_what_moves_a_workflow_whose_jobs_all_wait(world: World, graph: Graph) -> None:
    outside = world.enqueue()
    waits = graph.step("second", parents=(outside,))
    world.backend.jobs.enqueue([waits, graph.step("third", parents=(waits.id,))])
    world.complete(graph.worker, graph.claim)
    assert world.backend.workflows.moved_by(graph.id) == [outside]


def test_nothing_moves_a_workflow_that_is_held(world: World, graph: Graph) -> None:
    held = graph.step("second", parents=(graph.claim.id,), on_parent_failure="hold")
    world.backend.jobs.enqueue([held, graph.step("third", parents=(held.id,))])
    now = world.clock.steady()
    verbs.settle(world.backend, graph.worker, [model.cancelled(graph.claim, now, now)])
    assert graph.counts == {"cancelled": 1, "waiting": 2}
    assert world.backend.workflows.moved_by(graph.id) == []


def test_a_workflow_can_be_looked_at(world: World, graph: Graph) -> None:
    outside = world.enqueue()
    second = graph.step("second", parents=(graph.claim.id, outside))
    world.backend.jobs.enqueue([second])
    nodes, edges, tally = world.backend.workflows.drawing(graph.id)
    assert [(node.step, node.state) for node in nodes] == [("first", State.RUNNING), ("second", State.WAITING)]
    assert edges == sorted([(graph.claim.id, second.id), (outside, second.id)])
    assert world.backend.workflows.step(graph.id, "second") == second.id
    assert world.backend.workflows.step(graph.id, "none") is None
    assert world.backend.workflows.tallies([graph.id]) == {graph.id: tally}
    assert tally == ({"running": 1, "waiting": 1}, {})
    assert world.backend.workflows.find(graph.id[-8:]) == [graph.id]
    assert world.backend.workflows.find("%") == []
