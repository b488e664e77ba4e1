"""Jobs that wait for others: wiring them at enqueue, and letting them go when a parent ends.

A child's `waiting_on` counts its edges that are not satisfied. The end of a parent sets `fanout_pending` on it in the
same statement; `fan_out` then decides its open edges in chunks, each edge once, and counts the children down by the
edges it decided itself. A crash between the two leaves the flag, and the next `fan_out` of any worker goes on. It
waits for no row: a locked parent or child is left with its flag. A retry waits for it, though, or it would not see
the edges just decided, and would not bring their children back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dray.backends.database import Database, Session
from dray.backends.rows import FREE, Start
from dray.backends.store import Store
from dray.errors import GraphError, StorageError, UnknownJob
from dray.log import log
from dray.model.bounds import FANOUT_CHUNK
from dray.model.job import Reason, State
from dray.model.lost_parents import LOST_LIMIT, Culprit, Lost
from dray.model.new_job import NewJob
from dray.model.workflow import Edge, decide_edge, order


class FanOut(NamedTuple):
    """What one step did: how many edges it decided, and whether any are left."""

    decided: int
    left: bool


class Reconciled(NamedTuple):
    """What did not add up and was repaired: parents whose end was never passed on, children counted wrong."""

    parents: list[str]
    children: list[str]


class Neighbour(NamedTuple):
    """A job beside another one in a graph."""

    id: str
    task: str
    step: str | None
    queue: str
    state: str
    workflow_id: str | None
    started_at: int | None
    finished_at: int | None


class Neighbours(NamedTuple):
    parents: list[Neighbour]
    children: list[Neighbour]


class GraphStore(Store):
    def fan_out(self, limit: int = FANOUT_CHUNK) -> FanOut:
        """Tells at most `limit` children of the end of their parents: goes on where the enders were cut off."""
        freed: list[str] = []  # queues
        cancelled: list[str] = []

        def work(tx: Session) -> FanOut:
            picked = tx.rows("fanout_pick", limit=limit)
            edges = [(parent, child, decide_edge(state, policy)) for parent, child, state, policy in picked]
            marked = tx.each("edge_mark", [(parent, child, edge.satisfied) for parent, child, edge in edges])
            decided = [edge for edge, was_marked in zip(edges, marked, strict=True) if was_marked]
            lost = sorted({child for _, child, edge in decided if edge is Edge.CANCEL})
            ended = tx.each("child_cancel", [(child,) for child in lost])
            fulfilled = Counter(child for _, child, edge in decided if edge.satisfied == 1)
            tx.each("child_free", sorted(fulfilled.items()))
            freed[:] = [row[0] for row in tx.rows("fanout_freed", ids=sorted(fulfilled))] if fulfilled else []
            cancelled[:] = [child for child, has_ended in zip(lost, ended, strict=True) if has_ended]
            tx.run("fanout_finish")
            return FanOut(len(decided), bool(tx.rows("fanout_left")[0][0]))

        step = self._db.write(work, durable=False)
        self._db.announce(freed)
        if cancelled:
            self._db.announce_done()
            tell_cancelled(self._db, cancelled)
        return step

    def fan_out_all(self, *, to_end: bool = False) -> FanOut:
        """Tells the children of jobs that have ended. Returns whether any are left, and whether the last step moved.

        Stops after FANOUT_CHUNK edges, so that other writers have a turn, unless `to_end` is set. Also stops where
        nothing moves because another transaction holds the rows. That one, mostly of the fan-out duty, may end jobs
        whose children are not told yet: a worker that took this for the end would seem idle too early.

        The ends of the parents are committed before this runs. An error of the database here is therefore logged and
        not raised: the caller would lose its answer, and "nothing was written" would be wrong. `fanout_pending` stays
        set, and the worker with the fan-out duty goes on from there.
        """
        try:
            while (step := self._fan_out_turn()).left and step.decided and to_end:
                pass
        except StorageError as error:
            log.warning("the children of ended jobs will be told later: %s", error)
            return FanOut(0, left=True)
        return step

    def _fan_out_turn(self) -> FanOut:
        decided = 0
        while decided < FANOUT_CHUNK:
            step = self.fan_out()
            decided += step.decided
            if not step.left or not step.decided:
                return FanOut(0, step.left)
        return FanOut(decided, left=True)

    def reconcile(self, limit: int = FANOUT_CHUNK) -> Reconciled:
        """Repairs waiting jobs that would never be freed, at most `limit` of a kind. Anything it finds is a defect
        worth a loud line."""

        def work(tx: Session) -> Reconciled:
            parents = [row[0] for row in tx.rows("reconcile_parents", ids=found)]
            children = [row[0] for row in tx.rows("reconcile_children", ids=found)]
            return Reconciled(parents, children)

        # A look first: it goes through everything that waits, and the write lock is not held for that.
        found = [row[0] for row in self._read("reconcile_look", limit=limit)]
        if not found:
            return Reconciled([], [])
        repaired = self._db.write(work)
        if repaired.parents:
            self.fan_out_all()
        return repaired

    def lost(self, job_id: str) -> Lost:
        """The parents, and theirs, that keep a job from starting over."""
        return self._db.read(lambda tx: lost_parents(tx, job_id))

    def edges(self, job_id: str) -> list[tuple[str, str, int]]:
        """(parent, child, satisfied) of every edge at a job."""
        return [(p, c, s) for p, c, s in self._read("edge_list", id=job_id)]

    def neighbours(self, job_id: str, limit: int) -> Neighbours:
        """The jobs that a job runs after, and those that run after it, at most `limit` of each."""

        def look(tx: Session) -> Neighbours:
            found = (tx.rows(name, id=job_id, limit=limit) for name in ("parents_of", "children_of"))
            return Neighbours(*([Neighbour(*row) for row in each] for each in found))

        return self._db.read(look)


def tell_cancelled(db: Database, ids: Sequence[str]) -> None:
    """Tells of jobs that were cancelled as expired or with a parent. After the commit."""
    if db.on_cancelled is not None:
        db.on_cancelled(ids)


def place(tx: Session, jobs: Sequence[NewJob]) -> dict[str, Start]:
    """Decides for every job with parents how it starts. Refuses cycles and parents that are not there."""
    if not any(job.parents for job in jobs):
        return {}
    by_id = {job.id: job for job in jobs}
    parents = {parent for job in jobs for parent in job.parents}
    # Those of the batch too: when an enqueue is repeated they may be there, and may have ended.
    states: dict[str, str] = dict(tx.rows("parent_states", ids=sorted(parents)))
    _refuse_unknown(tx, jobs, parents - states.keys() - by_id.keys())
    starts: dict[str, Start] = {}
    for job_id in order({job.id: [p for p in job.parents if p in by_id] for job in jobs}):
        if job_id in states or not states.keys() >= set(by_id[job_id].parents):
            starts[job_id] = FREE  # there already: what it became stands
            states.setdefault(job_id, State.QUEUED)
            continue
        starts[job_id] = _start_of(by_id[job_id], states)
        states[job_id] = starts[job_id].state or State.QUEUED
    return starts


def _refuse_unknown(tx: Session, jobs: Sequence[NewJob], unknown: set[str]) -> None:
    """An enqueue that is repeated may outlive its parents; a new job may not."""
    if not unknown:
        return
    orphans = [job for job in jobs if not unknown.isdisjoint(job.parents)]
    there = {row[0] for row in tx.rows("job_find", ids=[job.id for job in orphans])}
    for job in orphans:
        if job.id not in there:
            missing = next(parent for parent in job.parents if parent in unknown)
            raise UnknownJob(
                f"job {job.id} ({job.task}) was to run after job {missing}, which does not exist: "
                "it was never committed, was rolled back or was pruned; nothing was enqueued. "
                "Enqueue the parent first"
            )


def _start_of(job: NewJob, states: dict[str, str]) -> Start:
    decided = {parent: decide_edge(states[parent], job.on_parent_failure) for parent in job.parents}
    if Edge.CANCEL in decided.values():
        edges = tuple((parent, -1 if edge is Edge.CANCEL else edge.satisfied) for parent, edge in decided.items())
        return Start(State.CANCELLED, 0, edges)
    edges = tuple((parent, edge.satisfied) for parent, edge in decided.items())
    waiting_on = sum(satisfied != 1 for _, satisfied in edges)
    return Start(State.WAITING if waiting_on else None, waiting_on, edges)


def wire(
    tx: Session, jobs: Sequence[NewJob], starts: dict[str, Start], fresh: set[str], winners: dict[str, str]
) -> None:
    """Writes the edges of the jobs that were written just now."""
    _refuse_missing_steps(jobs, winners)
    edges: list[tuple[str, str, int]] = []
    for job in jobs:
        if job.id not in starts or job.id not in fresh:
            continue
        for parent, satisfied in starts[job.id].edges:
            if parent in winners:
                raise GraphError(
                    f"job {parent} is unique and its key is held by job {winners[parent]}, so job {job.id} cannot "
                    "run after it; nothing was enqueued: make it run after that job, or drop `unique` there"
                )
            edges.append((parent, job.id, satisfied))
    if edges:
        tx.each("edge_insert", edges)


def _refuse_missing_steps(jobs: Sequence[NewJob], winners: dict[str, str]) -> None:
    """A workflow is written whole: the job that holds a step's unique key is no step of it."""
    missing = next((job for job in jobs if job.id in winners and job.workflow_id is not None), None)
    if missing is not None:
        raise GraphError(
            f"step {missing.step or missing.task} is unique and its key {missing.unique_key!r} is held by job "
            f"{winners[missing.id]}, which is no step of this workflow; nothing was enqueued: run after that job, "
            "or drop `unique` there"
        )


def lost_parents(tx: Session, job_id: str) -> Lost:
    culprits: list[Culprit] = []
    orphans: list[str] = []
    level, seen = [job_id], {job_id}
    while level and len(seen) < LOST_LIMIT:
        above: list[str] = []
        for child, parent, *rest in tx.rows("parents_lost", ids=level, limit=LOST_LIMIT):
            if parent is None:
                orphans.append(child)
            elif parent not in seen:
                seen.add(parent)
                above.append(parent)
                found = Culprit(parent, *rest)
                if found.reason != Reason.PARENT:
                    culprits.append(found)
        level = above
    return Lost(tuple(culprits), tuple(orphans))


def startable(tx: Session, ids: list[str]) -> tuple[list[str], list[str]]:
    """Of jobs that are to start over together: those that can, and those that a parent keeps from it."""
    wanted = set(ids)
    children: dict[str, list[str]] = {}
    blocked: dict[str, None] = {}
    for child, parent in tx.rows("retry_blocked", ids=ids):
        if parent in wanted:
            children.setdefault(parent, []).append(child)
        else:
            blocked[child] = None
    found = list(blocked)
    while found:  # what is blocked blocks its children
        found = [child for parent in found for child in children.get(parent, ()) if child not in blocked]
        blocked |= dict.fromkeys(found)
    return [i for i in ids if i not in blocked], list(blocked)


def revive_children(tx: Session, parents: list[str]) -> set[str]:
    """Children that were cancelled with these parents wait again, and theirs, level by level; returns their ids."""
    revived: set[str] = set()
    while parents:
        children = sorted({row[0] for row in tx.rows("retry_child_edges", ids=parents)})
        # A fan-out that is just passing the end of another parent on to them has to be done first, or they are
        # counted wrong.
        tx.rows("job_lock", ids=children)
        tx.rows("retry_lock_parents", ids=children)
        parents = [row[0] for row in tx.rows("retry_children", ids=children)]
        revived.update(parents)
    return revived
