"""Graphs of any shape, with any policies, any outcomes and in any order.

A worker without bodies claims and ends jobs by a plan, between crashes, cancels, expiry, pruning and deletion.
A child never starts before its parents' outcomes allow it, every graph comes to rest, each job ends as its own policy
and its parents' outcomes require, and the rest can always be retried and completed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.backends.store.graph import FanOut, GraphStore
from dray.errors import DrayError, GraphError, UnknownJob
from dray.instants import DAY, HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import FINAL, Claim, Job
from dray.model.new_job import NewJob
from dray.model.retention import Retention
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import beside
from tests.backends.world import World

# The planned end of a job, if it gets that far. A worker claims the first four; the last two are never claimed.
RUNS = {"complete": "completed", "fail": "failed(error)", "crash": "failed(crashed)", "stop": "cancelled(user)"}
NEVER = {"cancel": "cancelled(user)", "expire": "cancelled(expired)"}
EVERYTHING = Retention(0, 0, 0)
GRAPHS = int(os.environ.get("DRAY_SOAK_ROUNDS", "40"))

property_of_both_databases = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Node:
    fate: str
    policy: str
    parents: tuple[int, ...]  # earlier nodes
    is_delayed: bool


nodes = st.builds(
    Node,
    st.sampled_from(("complete", "complete", "complete", *RUNS, *NEVER)),
    st.sampled_from(("cancel", "run", "hold")),
    st.lists(st.integers(0, 8), max_size=4).map(tuple),
    st.sampled_from((False, False, False, True)),
)


def plan(drawn: list[Node]) -> list[Node]:
    """Parents are counted back from each node, so that every example is a graph without cycles."""
    return [
        replace(node, parents=tuple(dict.fromkeys(n - 1 - back for back in node.parents if back < n)))
        for n, node in enumerate(drawn)
    ]


plans = st.lists(nodes, min_size=1, max_size=10).map(plan)


@dataclass
class Play:
    """One graph and an unreliable worker."""

    world: World
    plan: list[Node]
    rng: random.Random
    jobs: list[NewJob] = field(default_factory=list[NewJob])
    hands: list[tuple[str, Claim]] = field(default_factory=list[tuple[str, Claim]])
    ends: dict[str, str] = field(default_factory=dict[str, str])  # of all ended jobs, including deleted ones
    fates: dict[str, str] = field(default_factory=dict[str, str])
    told: set[str] = field(default_factory=set[str])  # jobs that ended once and were retried

    def __post_init__(self) -> None:
        self.worker = self.world.worker()
        ids = [self.world.ids.new() for _ in self.plan]
        for job_id, node in zip(ids, self.plan, strict=True):
            self.jobs.append(
                NewJob(
                    id=job_id,
                    task=node.fate,
                    parents=tuple(ids[n] for n in node.parents),
                    on_parent_failure=node.policy,
                    delay_us=HOUR if node.is_delayed else 0,
                    expires_us=DAY if node.fate == "expire" else None,
                    max_attempts=1,
                )
            )
        self.fates = {job.id: job.task for job in self.jobs}
        self.unwritten = list(self.jobs)

    # Steps

    def write(self) -> None:
        """Enqueues the next jobs, in any order; their parents exist, are among them, or have already ended."""
        batch = self.unwritten[: self.rng.randint(1, len(self.plan))]
        self.unwritten = self.unwritten[len(batch) :]
        self.world.backend.jobs.enqueue(self.rng.sample(batch, len(batch)))

    def claim(self) -> None:
        fate = self.rng.choice(list(RUNS))
        worker = self.world.worker() if fate == "crash" else self.worker
        for claim in self.world.claim(worker, self.rng.randint(1, 3), tasks=(fate,)):
            self.check_start(claim.id)
            self.hands.append((worker, claim))

    def settle(self) -> None:
        if not self.hands:
            return
        worker, claim = self.hands.pop(self.rng.randrange(len(self.hands)))
        fate, now = self.fates[claim.id], self.world.clock.steady()
        if fate == "complete":
            self.world.complete(worker, claim)
        elif fate == "fail":
            self.world.fail(worker, claim)
        elif fate == "stop":
            self.world.backend.jobs.cancel([claim.id])
            verbs.settle(self.world.backend, worker, [model.cancelled(claim, now, now)])
        else:
            self.hands = [(other, held) for other, held in self.hands if other != worker]
            self.world.bury(worker)

    def cancel(self) -> None:
        some = [job.id for job in self.there() if self.fates[job.id] == "cancel"]
        self.world.backend.jobs.cancel(self.rng.sample(some, self.rng.randint(0, len(some))))

    def pass_time(self) -> None:
        self.world.clock.advance(self.rng.choice((SECOND, HOUR, DAY)))
        self.rng.choice((self.world.backend.jobs.expire, self.world.backend.jobs.promote))()

    def fan_out(self) -> None:
        self.world.backend.graph.fan_out(limit=self.rng.choice((1, 1000)))

    def clean(self) -> None:
        """Removes ended jobs as far as allowed."""
        self.note_ends()
        if self.rng.random() < 0.5:
            verbs.prune_some(self.world.backend, EVERYTHING, self.rng.choice((1, 1000)))
        elif self.ends:
            self.world.backend.jobs.delete([self.rng.choice(sorted(self.ends))])
        self.check_needed_parents()

    def step(self) -> None:
        dies = self.rng.random() < 0.2
        action = self.rng.choice((self.claim, self.claim, self.settle, self.settle, *self.others()))
        with (
            patch.object(GraphStore, "_fan_out_turn", _nothing)
            if dies
            else patch.object(GraphStore, "_", 0, create=True)
        ):
            action()

    def others(self) -> tuple[Callable[[], None], ...]:
        # A parent deleted before its child is enqueued is unknown, so nothing is removed until all jobs are written.
        return (self.cancel, self.pass_time, self.fan_out, self.write if self.unwritten else self.clean)

    def go_on(self) -> None:
        """Continues until nothing changes any more."""
        for _ in range(400 + 200 * len(self.plan)):
            self.step()
            if self.is_at_rest():
                self.note_ends()
                return
        raise AssertionError(f"still not at rest: {[shown(job) for job in self.there()]}")

    def is_at_rest(self) -> bool:
        if self.unwritten or self.hands:
            return False
        there = self.there()
        if any(job.fanout_pending or job.state not in {*FINAL, "waiting"} for job in there):
            return False
        return not any(job.state == "waiting" and job.task in NEVER for job in there if self.fates[job.id] in NEVER)

    # Invariants

    def there(self) -> list[Job]:
        return self.world.backend.jobs.get([job.id for job in self.jobs])

    def note_ends(self) -> None:
        self.ends |= {job.id: shown(job) for job in self.there() if job.state in FINAL}

    def check_start(self, job_id: str) -> None:
        """Checks that every parent has ended as the child requires."""
        self.note_ends()
        (job,) = (job for job in self.jobs if job.id == job_id)
        for parent in job.parents:
            if parent in self.told and job.on_parent_failure == "run":
                continue  # the child only needed its end, and does not wait for it again
            assert parent in self.ends, f"{job.task} was started before its parent ended"
            assert self.ends[parent] == "completed" or job.on_parent_failure == "run", self.ends[parent]

    def orphans(self) -> set[str]:
        """Returns the jobs that were cancelled with a parent that is gone, and what waits for such."""
        there = {job.id: job for job in self.there()}
        found = {job_id for job_id in there if self.world.backend.graph.lost(job_id).orphans}
        for job in self.jobs:  # parents before children
            waits = job.id in there and there[job.id].state == "waiting"
            if waits and any(there[parent].state == "waiting" for parent in found.intersection(job.parents)):
                found.add(job.id)
        return found

    def check_needed_parents(self) -> None:
        """Checks that every parent of a waiting job exists."""
        there = {job.id: job for job in self.there()}
        for job in there.values():
            edges = [edge for edge in self.world.backend.graph.edges(job.id) if edge[1] == job.id]
            assert job.state != "waiting" or job.waiting_on == sum(edge[2] != 1 for edge in edges) > 0
            assert all(edge[0] in there for edge in edges)

    def check_ends(self) -> None:
        """Checks that each job ended as its policy and its parents' outcomes require."""
        states = {job.id: shown(job) for job in self.there()} | self.ends
        for job in self.jobs:
            parents = [states[parent] for parent in job.parents]
            is_failed = any(parent not in {"completed", "waiting"} for parent in parents)
            is_held = "waiting" in parents
            ended = {**RUNS, **NEVER}[job.task]
            if is_failed and job.on_parent_failure == "cancel":
                expected = {"cancelled(parent)", ended} if job.task in NEVER else {"cancelled(parent)"}
            elif job.task in NEVER:
                expected = {ended}
            elif is_held or (is_failed and job.on_parent_failure == "hold"):
                expected = {"waiting"}
            else:
                expected = {ended}
            assert states[job.id] in expected, (job.task, job.on_parent_failure, parents)


def shown(job: Job) -> str:
    return job.state if job.reason is None else f"{job.state}({job.reason})"


def _nothing(_: object) -> FanOut:
    """Replaces a fan-out that a crash prevents."""
    return FanOut(0, left=False)


@contextmanager
def emptied(world: World, url: str) -> Generator[World]:
    """The same database for every example, emptied."""
    with beside.connect(url) as connection:
        for table in ("dray_edges", "dray_jobs", "dray_workflows", "dray_workers"):
            beside.execute(connection, f"DELETE FROM {table}")  # pyright: ignore[reportArgumentType]
        connection.commit()
    yield world


@given(plan=plans, seed=st.integers(0, 1 << 16))
@settings(property_of_both_databases, max_examples=GRAPHS)
def test_every_graph_ends_as_its_policies_say_and_can_be_completed_later(
    world: World, url: str, plan: list[Node], seed: int
) -> None:
    with emptied(world, url):
        play = Play(world, plan, random.Random(seed))
        play.go_on()
        play.check_ends()
        play.check_needed_parents()
        assert world.backend.graph.reconcile() == ([], [])

        # All failed, cancelled and held jobs, retried together, complete; not those whose parent has been removed.
        play.fates = dict.fromkeys(play.fates, "complete")
        stuck = play.orphans()
        again = [job.id for job in play.there() if job.state in {"failed", "cancelled"} and job.id not in stuck]
        gone = play.fates.keys() - {job.id for job in play.there()}
        assert sorted(world.backend.jobs.retry([*again, *stuck])) == sorted(again)
        play.told = set(again)
        play.ends = dict.fromkeys(gone, "completed") | {
            job.id: "completed" for job in play.there() if job.state == "completed"
        }
        complete_all(play)
        assert {job.state for job in play.there() if job.id not in stuck} <= {"completed"}

        world.backend.jobs.cancel([job.id for job in play.there()])
        world.clock.advance(SECOND)
        verbs.prune(world.backend, EVERYTHING)
        assert (beside.count(url, "dray_jobs"), beside.count(url, "dray_edges")) == (0, 0)


def complete_all(play: Play) -> None:
    while True:
        play.world.clock.advance(HOUR)
        claims = play.world.claim(play.worker, 3, tasks=(*RUNS, *NEVER))
        if not claims:
            return
        for claim in claims:
            play.check_start(claim.id)
            play.world.complete(play.worker, claim)


# Refused


def to_itself(jobs: list[NewJob], n: int, _: World) -> None:
    jobs[n] = replace(jobs[n], parents=(*jobs[n].parents, jobs[n].id))


def in_a_circle(jobs: list[NewJob], n: int, world: World) -> None:
    """Adds a new job that closes a cycle in any graph."""
    between = world.new(parents=(jobs[n].id,))
    jobs[n] = replace(jobs[n], parents=(*jobs[n].parents, between.id))
    jobs.append(between)


def to_nobody(jobs: list[NewJob], n: int, world: World) -> None:
    jobs[n] = replace(jobs[n], parents=(*jobs[n].parents, world.ids.new()))


def step_twice(jobs: list[NewJob], n: int, world: World) -> None:
    jobs.append(world.new(workflow_id=jobs[n].workflow_id, step=jobs[n].step))


FAULTS: list[tuple[Callable[[list[NewJob], int, World], None], type[DrayError]]] = [
    (to_itself, GraphError),
    (in_a_circle, GraphError),
    (to_nobody, UnknownJob),
    (step_twice, GraphError),
]


@pytest.mark.parametrize(("spoil", "kind"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
@given(plan=plans, data=st.data())
@settings(property_of_both_databases, max_examples=8)
def test_a_graph_that_cannot_run_is_refused_whole(
    world: World, url: str, plan: list[Node], data: st.DataObject, spoil: Any, kind: type[DrayError]
) -> None:
    with emptied(world, url), beside.connect(url) as user:
        workflow = Workflow(world.ids.new(), "etl", 0)
        jobs = [
            replace(job, workflow_id=workflow.id, step=f"s{n}")
            for n, job in enumerate(Play(world, plan, random.Random(1)).jobs)
        ]
        spoil(jobs, data.draw(st.integers(0, len(plan) - 1)), world)
        jobs = data.draw(st.permutations(jobs))
        connection = data.draw(st.sampled_from((None, user)))

        with pytest.raises(kind):
            world.backend.jobs.enqueue(jobs, workflow=workflow, connection=connection)
        user.commit()

        assert [beside.count(url, table) for table in ("dray_jobs", "dray_edges", "dray_workflows")] == [0, 0, 0]
