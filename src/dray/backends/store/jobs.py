"""Jobs, workflows and queues as producers and operators see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

from dray.backends import rows
from dray.backends.database import LAST_ID, Database, Row, Session, write_and_recall
from dray.backends.rows import Holding
from dray.backends.store import Store, graph
from dray.backends.store.actions import ActionRow, write_with_action
from dray.backends.store.graph import GraphStore
from dray.backends.store.group_commit import GroupCommit
from dray.backends.store.insert import insert
from dray.model.action import NewAction
from dray.model.bounds import ATTEMPTS_KEPT, PROMOTE_CHUNK
from dray.model.job import CancelResult, Enqueued, Job, Queue, State
from dray.model.new_job import MANY, AlikeJobs, NewJob
from dray.model.retention import STEP_ROWS, Budget
from dray.model.workflow import Tally, Workflow

_ID_CHARS = set("0123456789abcdef-")


class Ended(NamedTuple):
    """What a waiter is told; the ids in neither of the two are live."""

    jobs: list[Job]
    missing: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs a list shows; what is None does not matter."""

    states: frozenset[State] = frozenset(State)
    reason: str | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    workflow_id: str | None = None
    workflow: str | None = None  # any run of this name
    schedule: str | None = None
    since: int | None = None


class Upcoming(NamedTuple):
    """What there is to do that no worker runs; times in microseconds from now, negative where overdue."""

    due_us: int | None  # the earliest scheduled job
    expires_us: int | None  # the earliest that may not be started any more
    has_fanout: bool  # an ended parent whose children have not been told
    slot_us: int | None  # the earliest slot of a schedule


class JobStore(Store):
    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._known_queues: set[str] = set()
        self._group = GroupCommit(self._post)

    def _post(self, gather: Callable[[], Sequence[AlikeJobs]], /, *, durable: bool) -> None:
        self._db.post(gather, durable=durable)

    def enqueue(
        self,
        new: Sequence[NewJob],
        *,
        workflow: Workflow | None = None,
        connection: Any = None,
        durable: bool = True,
        action: NewAction | None = None,
    ) -> list[Enqueued]:
        """Writes jobs, their edges and their workflow, all or nothing, and announces them; on disk when it returns,
        if durable.

        A job whose id is there already is this same enqueue repeated, and counts as written. One whose unique
        key is held is not written: the holder's id is returned, marked duplicate. A holder that has not started
        takes over, if `on_conflict` says so, the request's arguments or its time, and is then marked replaced
        too. Parents must exist, here or in the batch; those already ended count at once. With `connection`
        everything happens in that connection's transaction and stands or falls with it.

        `action` here and below: what a person does with this; its row is written in the same transaction.
        """
        if connection is not None:
            # Not in a user's transaction: until they commit, every other enqueue to a new queue would wait for it.
            work = _writing(new, workflow, action=action)
            return self._db.join(connection, work, ready={job.queue for job in new})
        new_queues = {job.queue for job in new} - self._known_queues
        are_many = len(new) >= MANY
        if not (are_many or new_queues or workflow or action) and all(job.is_plain for job in new):
            self._share([AlikeJobs(job, (job.id,), (job.args,)) for job in new], durable=durable)
            return [Enqueued(job.id, duplicate=False) for job in new]
        answer = self._db.write(_writing(new, workflow, new_queues, action), durable=durable, many=are_many)
        self._known_queues.update(new_queues)
        # A step with parents is announced when they have ended.
        self._db.announce({job.queue for job in new if workflow is None or not job.parents})
        return answer

    def enqueue_alike(self, jobs: AlikeJobs, *, connection: Any = None, durable: bool = True) -> None:
        """As `enqueue`, for jobs that no other job decides about: each is written under its id."""
        queue = jobs.pattern.queue
        if connection is not None:
            self._db.join(connection, lambda tx: tx.insert_alike(jobs), ready={queue})
            return
        is_new, are_many = queue not in self._known_queues, len(jobs.ids) >= MANY
        if not (are_many or is_new):
            self._share([jobs], durable=durable)
            return

        def work(tx: Session) -> None:
            if is_new:
                tx.run("queue_add", names=[queue])
            tx.insert_alike(jobs)

        self._db.write(work, durable=durable, many=are_many)
        self._known_queues.add(queue)
        self._db.announce([queue])

    def _share(self, batch: Sequence[AlikeJobs], *, durable: bool) -> None:
        """Nothing has to be read before the commit: it takes one round trip, which other threads may share."""
        self._db.check_may_write()
        self._group.add(batch, durable=durable)

    async def enqueue_alike_async(self, jobs: AlikeJobs, *, connection: Any) -> None:
        """As `enqueue_alike`, and as `enqueue_async`."""
        await self._db.join_async(connection, lambda tx: tx.insert_alike(jobs), ready={jobs.pattern.queue})

    async def enqueue_async(
        self, new: Sequence[NewJob], *, workflow: Workflow | None = None, connection: Any
    ) -> list[Enqueued]:
        """As `enqueue`, without blocking the event loop; takes asynchronous connections too.

        A synchronous connection is used in the calling thread. Cancelled, it wrote all or nothing.
        """
        return await self._db.join_async(connection, _writing(new, workflow), ready={job.queue for job in new})

    def get(self, ids: Sequence[str]) -> list[Job]:
        """The jobs that exist among these ids, oldest first."""
        return [rows.job(row) for row in self._read("job_get", ids=list(ids))]

    def find(self, part: str, limit: int = 10) -> list[str]:
        """The ids that contain a part (lower case), newest first. Reads every id: for people, not for loops."""
        return _find(self._read, "job_find_part", part, limit)

    def ended(self, ids: Sequence[str]) -> Ended:
        """The jobs that have ended among these ids, and the ids that do not exist. Cheap where there are none."""

        def work(tx: Session) -> Ended:
            found = dict(tx.rows("job_ended", ids=list(ids)))
            final = [job_id for job_id, has_ended in found.items() if has_ended]
            full = tx.rows("job_get", ids=final) if final else []
            return Ended([rows.job(row) for row in full], [job_id for job_id in ids if job_id not in found])

        return self._db.read(work)

    def newest(self, fit: Filter | None = None, *, limit: int = 100, before: str | None = None) -> list[Job]:
        """Jobs that fit, newest first; go on with `before` = the last id seen."""
        fit = fit or Filter()
        asked = {**asdict(fit), "states": sorted(fit.states)}
        before = before or LAST_ID
        if fit.workflow_id is not None or fit.workflow is not None:
            statement = "list_runs_named" if fit.workflow_id is None else "list_run"
            found = self._read(statement, **asked, runs=[fit.workflow_id], before=before, limit=limit)
        else:
            found = self._db.read(lambda tx: tx.listed(asked, before, limit))
        return [rows.job(row) for row in found]

    # The three below return what they did. A try whose COMMIT went through and whose answer was lost is followed by
    # one that finds it done: what an earlier try of the same call wrote counts, if it is there.

    def cancel(self, ids: Sequence[str], *, action: NewAction | None = None) -> dict[str, CancelResult]:
        """Ends jobs that have not started, notes a request on running ones, leaves ended ones alone."""
        tried: dict[str, str] = {}
        noted = ActionRow(action)

        def work(tx: Session) -> dict[str, CancelResult]:
            states: dict[str, str] = dict(tx.rows("job_cancel", ids=list(ids)))
            tx.run("fanout_mark", ids=list(states))
            others = tx.rows("settle_found", ids=[i for i in ids if i not in states])
            final = {each.id: each.state for each in starmap(Holding, others)}
            states |= {i: tried[i] for i, state in final.items() if i in tried and state == State.CANCELLED}
            tried.update(states)
            moved = {
                i: CancelResult.REQUESTED if state == State.RUNNING else CancelResult.CANCELLED
                for i, state in states.items()
            }
            results = {i: moved.get(i, CancelResult.FINAL if i in final else CancelResult.UNKNOWN) for i in ids}
            noted.add(tx, len(moved), len(results) - len(moved))
            return results

        answer = self._db.write(work)
        GraphStore(self._db).fan_out_all(to_end=True)
        return answer

    def retry(self, ids: Sequence[str], *, action: NewAction | None = None) -> list[str]:
        """Starts ended jobs over, attempts and crashes at 0; returns those it did.

        Not a job with a parent that failed or was cancelled and that does not start over with it, unless it runs
        after such too (`on_parent_failure`): `graph.lost` says which. One with live parents waits for them. Children
        cancelled because of those that start over wait again. A completed attempt is kept in the history first. The
        unique lock is not taken again.
        """
        tried: set[str] = set()
        noted = ActionRow(action)

        def work(tx: Session) -> list[str]:
            tx.rows("job_lock", ids=list(ids))
            tx.rows("retry_lock_parents", ids=list(ids))
            retried: list[str] = []
            left = list(dict.fromkeys(ids))
            while left:
                free, blocked = graph.startable(tx, left)
                started = _start_over(tx, free)
                revived = graph.revive_children(tx, started)
                retried += [*started, *(i for i in blocked if i in revived)]
                left = [i for i in blocked if i not in revived] if revived else []
            before = sorted(tried.difference(retried))
            live = [i for i, has_ended in tx.rows("job_ended", ids=before) if not has_ended] if before else []
            tried.update(retried)
            retried += live
            noted.add(tx, len(retried), len(set(ids)) - len(retried))
            return retried

        return self._db.write(work) if ids else []

    def delete(self, ids: Sequence[str], *, action: NewAction | None = None) -> list[str]:
        """Removes jobs with their history, each whole, in as many short transactions as it takes; returns those it
        removed. Never running ones, nor one with a child that is live, failed or cancelled and stays: the child may
        ask for its result."""
        rows_of: dict[str, int] = dict(self._read("job_rows", ids=list(ids), most=STEP_ROWS))
        left = sorted(rows_of, reverse=True)  # children before their parents
        tried: set[str] = set()
        deleted: set[str] = set()
        missing = 0 if action is None else len(set(ids)) - len(rows_of)  # these need a transaction for their row only

        def work(tx: Session) -> tuple[list[str], list[str]]:
            budget, gone, later = Budget(self._db.clock.steady()), list[str](), left
            while later and budget.allowed():
                count = budget.fitting(rows_of[job_id] for job_id in later)
                if not count and budget.spent:
                    break
                count = count or 1  # a job goes whole, however large
                some, later = later[:count], later[count:]
                tx.rows("job_lock", ids=some)
                gone += _delete_in_turn(tx, some)
                budget.spend(sum(rows_of[job_id] for job_id in some), self._db.clock.steady())
            before = tried.difference(deleted, gone)
            there = {row[0] for row in tx.rows("job_find", ids=sorted(before))} if before else set[str]()
            tried.update(gone)
            gone += before - there
            stayed = set(left[: len(left) - len(later)]).difference(gone)
            noted.add(tx, len(gone), len(stayed) + missing)
            return gone, later

        while left or missing:
            noted = ActionRow(action)
            gone, left = self._db.write(work)
            deleted.update(gone)
            missing = 0
        return [job_id for job_id in dict.fromkeys(ids) if job_id in deleted]

    def promote(self, limit: int = PROMOTE_CHUNK) -> list[str]:
        """Queues scheduled jobs whose time has come; returns their queues, one entry a job."""
        promoted = write_and_recall(self._db, lambda tx: tx.rows("job_promote", limit=limit), durable=False)
        return [row[0] for row in promoted]

    def upcoming(self) -> Upcoming:
        """What is to be done to jobs that wait for their time or their parents, or by schedules, and when."""
        due_at, expires_at, has_fanout, slot_at, now = self._db.glance("job_upcoming")[0]
        due_us, expires_us, slot_us = (None if at is None else at - now for at in (due_at, expires_at, slot_at))
        return Upcoming(due_us, expires_us, bool(has_fanout), slot_us)

    def expire(self, limit: int = PROMOTE_CHUNK) -> list[str]:
        """Cancels, as `expired`, jobs not started in time; returns their ids. Tells one chunk of their children."""
        expired = [row[0] for row in write_and_recall(self._db, lambda tx: tx.rows("job_expire", limit=limit))]
        if expired:
            graph.tell_cancelled(self._db, expired)
            GraphStore(self._db).fan_out_all()
        return expired


def _writing(
    jobs: Sequence[NewJob],
    workflow: Workflow | None,
    new_queues: Collection[str] = (),
    action: NewAction | None = None,
) -> Callable[[Session], list[Enqueued]]:
    noted = ActionRow(action)

    def work(tx: Session) -> list[Enqueued]:
        if new_queues:
            tx.run("queue_add", names=sorted(new_queues))
        if workflow is not None:
            tx.run("workflow_insert", id=workflow.id, name=workflow.name)
        written = insert(tx, jobs)
        if action is not None:
            refused = sum(each.duplicate and not each.replaced for each in written)
            if action.kind == "job":  # the one that is there, which may be the holder of its unique key
                noted.action = replace(action, target=written[0].id)
            noted.add(tx, len(written) - refused, refused)
        return written

    return work


def _delete_in_turn(tx: Session, ids: list[str]) -> list[str]:
    """Removes jobs, and then those that only the removed ones needed."""
    gone: list[str] = []
    while ids and (removed := [row[0] for row in tx.rows("job_delete", ids=ids)]):
        gone += removed
        ids = [job_id for job_id in ids if job_id not in removed]
    return gone


def _start_over(tx: Session, ids: list[str]) -> list[str]:
    tx.run("attempt_keep", ids=ids)
    tx.run("attempt_trim", ids=ids, keep=ATTEMPTS_KEPT)
    retried = [row[0] for row in tx.rows("job_retry", ids=ids)]
    tx.forget_results(retried)
    tx.run("retry_own_edges", ids=retried)
    tx.run("retry_wait", ids=retried)
    return retried


def _find(read: Callable[..., list[Row]], statement: str, part: str, limit: int) -> list[str]:
    """The ids that contain a part. What no id contains is not looked for: it would be a pattern of its own."""
    return [] if set(part) - _ID_CHARS else [row[0] for row in read(statement, pattern=f"%{part}%", limit=limit)]


class Node(NamedTuple):
    """One step, as a drawing needs it."""

    id: str
    step: str | None
    task: str
    state: str
    reason: str | None
    error: str | None


class Drawing(NamedTuple):
    """A workflow at one moment: its jobs in the order they were made, (parent, child) of its edges, and its tally."""

    nodes: list[Node]
    edges: list[tuple[str, str]]
    tally: Tally


class WorkflowStore(Store):
    def get(self, workflow_id: str) -> tuple[Workflow, Tally] | None:
        """A workflow and how many of its jobs are in which state."""

        def look(tx: Session) -> tuple[Workflow, Tally] | None:
            found = tx.rows("workflow_get", id=workflow_id)
            return (Workflow(*found[0]), _tally(tx.rows("workflow_counts", id=workflow_id))) if found else None

        return self._db.read(look)

    def newest(self, *, limit: int = 100, before: str = LAST_ID) -> list[Workflow]:
        """The newest workflows before an id."""
        return [Workflow(*row) for row in self._read("workflow_list", limit=limit, before=before)]

    def tallies(self, ids: Sequence[str]) -> dict[str, Tally]:
        """How many jobs of each of these workflows are in which state."""
        found: dict[str, list[Row]] = {workflow_id: [] for workflow_id in ids}
        for workflow_id, *row in self._read("workflow_tallies", ids=list(ids)):
            found[workflow_id].append(tuple(row))
        return {workflow_id: _tally(rows) for workflow_id, rows in found.items()}

    def names(self, ids: Sequence[str]) -> dict[str, str]:
        """What these workflows are called."""
        return dict(self._read("workflow_names", ids=list(ids))) if ids else {}

    def has_name(self, name: str) -> bool:
        """Whether any workflow is called so. Reads them all: for people, not for loops."""
        return bool(self._read("workflow_named", name=name))

    def find(self, part: str, limit: int = 10) -> list[str]:
        """The ids of workflows that contain a part (lower case), newest first."""
        return _find(self._read, "workflow_find_part", part, limit)

    def jobs(self, workflow_id: str, states: frozenset[str]) -> list[str]:
        """The ids of a workflow's jobs in these states."""
        return [row[0] for row in self._read("workflow_jobs", id=workflow_id, states=sorted(states))]

    def step(self, workflow_id: str, step: str) -> str | None:
        """The id of the job that is this step."""
        found = self._read("workflow_step", id=workflow_id, step=step)
        return found[0][0] if found else None

    def drawing(self, workflow_id: str) -> Drawing:
        """What `dray workflows show` needs."""

        def look(tx: Session) -> Drawing:
            nodes = [Node(*row) for row in tx.rows("workflow_nodes", id=workflow_id)]
            edges = [(parent, child) for parent, child in tx.rows("workflow_edges", id=workflow_id)]
            return Drawing(nodes, edges, _tally(tx.rows("workflow_counts", id=workflow_id)))

        return self._db.read(look)

    def moved_by(self, workflow_id: str, limit: int = 500) -> list[str]:
        """Of a workflow whose live jobs all wait: the jobs whose end will move it. None: it is held."""
        return [row[0] for row in self._read("workflow_moved_by", id=workflow_id, limit=limit)]


def _tally(found: list[Row]) -> Tally:
    return Tally({state: n for state, n, _ in found}, {state: n for state, _, n in found if n})


class QueueStore(Store):
    def upsert(self, name: str, priority: int) -> None:
        """Makes a queue, or changes its default priority for jobs to come."""
        self._db.write(lambda tx: tx.run("queue_set", name=name, priority=priority))

    def pause(self, name: str, *, action: NewAction | None = None) -> bool:
        """Once this returns nothing is claimed from the queue. False: it was paused already."""

        def pause(tx: Session) -> bool:
            tx.begin_pause(name)
            return tx.run("queue_pause", name=name) > 0

        return write_with_action(self._db, pause, action)

    def resume(self, name: str, *, action: NewAction | None = None) -> bool:
        """False: it was not paused."""
        return write_with_action(self._db, lambda tx: tx.run("queue_resume", name=name) > 0, action)

    def all(self) -> list[Queue]:
        """All queues that were enqueued to (other than on a user's connection), served, set or paused."""
        return [Queue(*row) for row in self._read("queue_list")]
