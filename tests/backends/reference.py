"""The storage contract again, in plain Python over dictionaries: both databases are compared with it.

It restates what `dray.backends.base` promises, as plainly as it can: rows are frozen values in dictionaries, a
transaction is a copy taken before, and nothing is clever. What the contract takes from `dray.model` (outcomes,
the meaning of an edge) comes from there; how a database does it must not be looked up here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from typing import Any

from dray.backends.store.graph import FanOut, Reconciled
from dray.backends.store.history import JobStats
from dray.backends.store.jobs import Drawing, Filter, Node
from dray.backends.store.work import Exchange
from dray.clock import Clock
from dray.errors import GraphError, UnknownJob
from dray.model import settlement as model
from dray.model.bounds import ATTEMPTS_KEPT, LOG_LINES
from dray.model.job import (
    FINAL,
    LIVE,
    UNSTARTED,
    Attempt,
    CancelResult,
    Claim,
    Demand,
    Enqueued,
    Held,
    Job,
    LogLine,
    Outcome,
    Queue,
    Reason,
    State,
)
from dray.model.limit import Bounds, Kind, Scope, Source, StoredRule, merged, said_by
from dray.model.lost_parents import Culprit, Lost
from dray.model.new_job import AlikeJobs, NewJob, OnConflict
from dray.model.retention import Retention
from dray.model.schedule import Schedule, blocking_states, same_rule
from dray.model.settlement import Rng, Settled, Settlement
from dray.model.worker import Beat, DeathVerdict, Lease, NewWorker, Rescued, Worker
from dray.model.workflow import Edge, Tally, Workflow, decide_edge, order
from tests.backends.turns import Limits, Start, complaint, rank

LIVE_WORKER = {"active", "draining"}

_TABLES = (
    *("jobs", "attempts", "edges", "workflows", "queues", "workers", "leases", "schedules", "logs"),
    *("held", "limits", "starts"),
)
_NO_CLAIMS = Demand((), (), 0)
_COLUMNS = {field.name for field in fields(Job)}
_UNRUN: dict[str, Any] = dict.fromkeys(
    ("reason", "worker_id", "started_at", "finished_at", "error", "result", "progress", "progress_message"),
) | {"cancel_requested_at": None, "attempt": 0, "crashes": 0, "fanout_pending": False}


_LABELS = ("name", "description", "tags", "headers", "retry", "keep_us", "key")
_WORK = ("args", "max_attempts", "max_crashes", "timeout", *_LABELS)


class Reference:
    """The verbs of the storage contract, without a database."""

    def __init__(self, clock: Clock, *, attempts_kept: int = ATTEMPTS_KEPT, log_lines: int = LOG_LINES) -> None:
        self.clock = clock
        self.attempts_kept = attempts_kept
        self.log_lines = log_lines
        self.is_cut_off = False  # the process dies before it fans out
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.edges: dict[tuple[str, str], int] = {}  # (parent, child) -> satisfied
        self.workflows: dict[str, Workflow] = {}
        self.queues: dict[str, Queue] = {}
        self.workers: dict[str, Worker] = {}
        self.leases: dict[str, Lease] = {}
        self.schedules: dict[str, Schedule] = {}
        self.logs: dict[str, tuple[LogLine, ...]] = {}
        self.held: dict[str, bool] = {}  # the running jobs that limits count
        self.limits: dict[tuple[str, str, str, str, int], StoredRule] = {}
        self.starts: dict[Start, int] = {}
        self.last_keys: dict[tuple[str, str], str] = {}  # (queue, task) -> the key that had the last turn
        self.claimed: list[str] = []  # what the databases have claimed, where whose turn it is is left to them
        # (worker, job, claim) -> how it ended, and when the outcome was left, by both clocks
        self.left: dict[tuple[str, str, int], tuple[Settlement, int, int]] = {}

    def tables(self) -> dict[str, Any]:
        """Returns all rows, to compare them with another snapshot."""
        return {name: copy(getattr(self, name)) for name in _TABLES}

    @contextmanager
    def transaction(self, *, commits: bool = True) -> Generator[None]:
        """All or nothing."""
        before = self.tables()
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise
        if not commits:
            vars(self).update(before)

    def _change(self, job_id: str, **changes: Any) -> Job:
        """Changes a job's row; every visible change sets `updated_at`."""
        self.jobs[job_id] = replace(self.jobs[job_id], updated_at=self.clock.now(), **changes)
        if self.jobs[job_id].state != State.RUNNING:
            self.held.pop(job_id, None)
        return self.jobs[job_id]

    def _in_state(self, *states: str) -> list[Job]:
        return [job for _, job in sorted(self.jobs.items()) if job.state in states]

    # Jobs, as producers and operators see them

    def jobs_enqueue(
        self, new: Sequence[NewJob], *, workflow: Workflow | None = None, connection: Any = None
    ) -> list[Enqueued]:
        with self.transaction():
            if connection is None:
                self._add_queues(job.queue for job in new)
            if workflow is not None:
                row = Workflow(workflow.id, workflow.name, self.clock.now())
                self.workflows.setdefault(workflow.id, row)
            return self._insert(new)

    def jobs_enqueue_alike(self, jobs: AlikeJobs) -> None:
        self.jobs_enqueue([jobs.pattern.like(*each) for each in zip(jobs.ids, jobs.args, strict=True)])

    def _add_queues(self, names: Iterable[str]) -> None:
        for name in names:
            self.queues.setdefault(name, Queue(name, 0, None, self.clock.now()))

    def _insert(self, new: Sequence[NewJob]) -> list[Enqueued]:
        now = self.clock.now()
        keys = {job.unique_key for job in new}
        for job in [job for job in self.jobs.values() if job.unique_lock in keys]:
            if job.unique_lock is not None and job.unique_until is not None and job.unique_until <= now:
                self._change(job.id, unique_lock=None)
        there = set(self.jobs)
        batch = {job.id for job in new}
        places = self._places([job for job in new if job.id not in there], batch)
        order({job.id: [p for p in job.parents if p in batch] for job in new})  # also of those that are there already
        answers = [self._insert_one(job, *places.get(job.id, (None, {}))) for job in new]
        holders = {job.id: answer.id for job, answer in zip(new, answers, strict=True) if answer.duplicate}
        for job in new:
            if job.id in holders and job.workflow_id is not None:
                raise GraphError("a step is a duplicate")
            if job.id not in there | holders.keys() and any(parent in holders for parent in job.parents):
                raise GraphError("a parent is a duplicate")
        return answers

    def _places(self, new: Sequence[NewJob], batch: set[str]) -> dict[str, tuple[str | None, dict[str, Edge]]]:
        """Returns for each new job its state, if its parents decide it, and the effect of each parent."""
        if any(parent not in batch and parent not in self.jobs for job in new for parent in job.parents):
            raise UnknownJob("a parent is not there")
        by_id = {job.id: job for job in new}
        states = {job_id: job.state for job_id, job in self.jobs.items()}
        places: dict[str, tuple[str | None, dict[str, Edge]]] = {}
        for job_id in order({job.id: [p for p in job.parents if p in by_id] for job in new}):
            edges = {p: decide_edge(states[p], by_id[job_id].on_parent_failure) for p in by_id[job_id].parents}
            state = None
            if Edge.CANCEL in edges.values():
                state = State.CANCELLED
            elif any(edge is not Edge.FREE for edge in edges.values()):
                state = State.WAITING
            places[job_id] = state, edges
            states[job_id] = state or State.QUEUED
        return places

    def _insert_one(self, new: NewJob, state: str | None, edges: dict[str, Edge]) -> Enqueued:
        if new.id in self.jobs:
            return Enqueued(new.id, duplicate=False)
        ends = state == State.CANCELLED
        for job in self.jobs.values():
            if not ends and new.unique_key is not None and job.unique_lock == new.unique_key:
                return Enqueued(job.id, duplicate=True, replaced=self._take_over(job, new))
            if new.step is not None and (job.workflow_id, job.step) == (new.workflow_id, new.step):
                raise GraphError("the workflow has this step")
        now = self.clock.now()
        run_at, queue = self._run_at(new), self.queues.get(new.queue)
        asked: dict[str, Any] = {
            field.name: getattr(new, field.name) for field in fields(NewJob) if field.name in _COLUMNS
        }
        decided: dict[str, Any] = {
            "state": state or (State.SCHEDULED if run_at > now else State.QUEUED),
            "reason": Reason.PARENT if ends else None,
            "priority": new.priority if new.priority is not None else queue.priority if queue else 0,
            "run_at": run_at,
            "expires_at": _later(now, new.expires_us) if new.expires_at is None else new.expires_at,
            "unique_lock": None if ends else new.unique_key,
            "unique_until": _later(now, new.unique_us),
            "unique_scope": None if new.unique_key is None else new.unique_scope,
            "claim": 0,
            "waiting_on": 0 if ends else sum(edge is not Edge.FREE for edge in edges.values()),
            "created_at": now,
            "updated_at": now,
            "finished_at": now if ends else None,
        }
        self.jobs[new.id] = Job(**_UNRUN | asked | decided)
        self.edges |= {(parent, new.id): edge.satisfied for parent, edge in edges.items()}
        return Enqueued(new.id, duplicate=False)

    def _run_at(self, new: NewJob) -> int:
        return self.clock.now() + new.delay_us if new.run_at is None else new.run_at

    def _take_over(self, holder: Job, new: NewJob) -> bool:
        """Applies a request to the job that holds its unique key; returns whether that job changed."""
        if holder.state not in UNSTARTED:
            return False
        if new.on_conflict == OnConflict.REPLACE and new.task == holder.task:
            queue = self.queues.get(holder.queue)
            priority = new.priority if new.priority is not None else queue.priority if queue else 0
            self._change(holder.id, **{name: getattr(new, name) for name in _WORK}, priority=priority)
            return True
        if new.on_conflict == OnConflict.RESCHEDULE:
            now, run_at = self.clock.now(), self._run_at(new)
            due = State.SCHEDULED if run_at > now else State.QUEUED
            self._change(
                holder.id,
                state=holder.state if holder.state == State.WAITING else due,
                run_at=run_at,
                expires_at=_later(now, new.expires_us) if new.expires_at is None else new.expires_at,
            )
            return True
        return False

    def jobs_get(self, ids: Sequence[str]) -> list[Job]:
        return [self.jobs[job_id] for job_id in sorted(set(ids)) if job_id in self.jobs]

    def jobs_newest(self, fit: Filter | None = None, *, limit: int = 100, before: str | None = None) -> list[Job]:
        fit = fit or Filter()
        found = [
            job
            for _, job in sorted(self.jobs.items(), reverse=True)
            if (before is None or job.id < before)
            and job.state in fit.states
            and fit.reason in {None, job.reason}
            and fit.queue in {None, job.queue}
            and fit.task in {None, job.task}
            and fit.workflow_id in {None, job.workflow_id}
            and (fit.workflow is None or self._is_named(job.workflow_id, fit.workflow))
            and fit.schedule in {None, job.schedule}
            and (fit.tag is None or fit.tag in job.tags)
            and (fit.since is None or job.created_at >= fit.since)
        ]
        return found[:limit]

    def _is_named(self, workflow_id: str | None, name: str) -> bool:
        return workflow_id in self.workflows and self.workflows[workflow_id].name == name

    def jobs_cancel(self, ids: Sequence[str]) -> dict[str, CancelResult]:
        answer: dict[str, CancelResult] = {}
        for job_id in dict.fromkeys(ids):
            job = self.jobs.get(job_id)
            asked_at = self.clock.now() if job is None else job.cancel_requested_at or self.clock.now()
            if job is None:
                answer[job_id] = CancelResult.UNKNOWN
            elif job.state in FINAL:
                answer[job_id] = CancelResult.FINAL
            elif job.state == State.RUNNING:
                self._change(job_id, cancel_requested_at=asked_at)
                answer[job_id] = CancelResult.REQUESTED
            else:
                self._end(job_id, State.CANCELLED, Reason.USER, cancel_requested_at=asked_at)
                answer[job_id] = CancelResult.CANCELLED
        self._pass_on()
        return answer

    def _end(self, job_id: str, state: str, reason: str | None, **changes: Any) -> Job:
        """Ends a job: frees its unique lock unless its window is open, and marks it for fan-out."""
        job = self.jobs[job_id]
        is_locked = job.unique_until is not None and job.unique_until > self.clock.now()
        return self._change(
            job_id,
            state=state,
            reason=reason,
            unique_lock=job.unique_lock if is_locked else None,
            **{"finished_at": self.clock.now(), "fanout_pending": self._has_open_edges(job_id), **changes},
        )

    def _has_open_edges(self, parent_id: str) -> bool:
        return any(parent == parent_id and satisfied == 0 for (parent, _), satisfied in self.edges.items())

    def jobs_retry(self, ids: Sequence[str]) -> list[str]:
        retried: list[str] = []
        left = {job.id for job in self.jobs_get(ids) if job.state in FINAL and job.args is not None}
        while started := [job_id for job_id in sorted(left) if self._may_start_over(job_id, left)]:
            self._start_over(started)
            revived = self._revive_children(started)
            retried += [*started, *(revived & left)]
            left -= {*started, *revived}
        return retried

    def _may_start_over(self, job_id: str, together: set[str]) -> bool:
        """Whether each parent is live, completed, or starts over too; those that ended otherwise may be tolerated."""
        job = self.jobs[job_id]
        parents = [self.jobs[parent] for parent, child in self.edges if child == job_id]
        is_orphan = job.reason == Reason.PARENT and not self._count_edges(job_id, -1)
        return not is_orphan and all(
            decide_edge(parent.state, job.on_parent_failure) in {Edge.OPEN, Edge.FREE}
            or (parent.id in together and self._may_start_over(parent.id, together))
            for parent in parents
        )

    def _start_over(self, ids: Sequence[str]) -> None:
        for job in self.jobs_get(ids):
            if job.state == State.COMPLETED:
                self._record(job, job.worker_id, Outcome.COMPLETED, job.started_at, job.finished_at)
            expires_at = self._unless_over(job.expires_at)
            self._change(job.id, **_UNRUN, state=State.QUEUED, run_at=self.clock.now(), expires_at=expires_at)
        for parent, child in [edge for edge in self.edges if edge[1] in ids]:
            self.edges[parent, child] = 0 if self.jobs[parent].state in LIVE else 1
        for job_id in ids:
            waiting_on = self._count_edges(job_id, 0)
            self._change(job_id, waiting_on=waiting_on, state=State.WAITING if waiting_on else State.QUEUED)

    def _revive_children(self, parents: Sequence[str]) -> set[str]:
        revived: set[str] = set()
        while parents:
            lost = [edge for edge, satisfied in self.edges.items() if edge[0] in parents and satisfied == -1]
            self.edges |= dict.fromkeys(lost, 0)
            parents = [
                job.id
                for job in self.jobs_get([child for _, child in lost])
                if (job.state, job.reason) == (State.CANCELLED, Reason.PARENT) and not self._count_edges(job.id, -1)
            ]
            for child in parents:
                again = {"state": State.WAITING, "waiting_on": self._count_edges(child, 0)}
                expires_at = self._unless_over(self.jobs[child].expires_at)
                self._change(child, **_UNRUN, **again, expires_at=expires_at)
            revived.update(parents)
        return revived

    def _unless_over(self, at: int | None) -> int | None:
        return at if at is not None and at > self.clock.now() else None

    def _count_edges(self, child_id: str, *satisfied: int) -> int:
        return sum(child == child_id and each in satisfied for (_, child), each in self.edges.items())

    def jobs_delete(self, ids: Sequence[str]) -> list[str]:
        gone: list[str] = []
        while found := [job.id for job in self.jobs_get(ids) if job.state != State.RUNNING and self._may_go(job)]:
            self._remove(found)
            gone += found
        return gone

    def _may_go(self, job: Job, *, with_workflow: bool = False) -> bool:
        """Returns whether each child has completed, or goes with it, and its fan-out is done."""
        children = [self.jobs[child] for parent, child in self.edges if parent == job.id]
        return not job.fanout_pending and all(
            child.state == State.COMPLETED
            or (with_workflow and child.state in FINAL and child.workflow_id == job.workflow_id)
            for child in children
        )

    def _remove(self, ids: Iterable[str]) -> None:
        gone = set(ids)
        self.jobs = {i: job for i, job in self.jobs.items() if i not in gone}
        self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] not in gone}
        self.edges = {edge: satisfied for edge, satisfied in self.edges.items() if gone.isdisjoint(edge)}
        self.logs = {i: lines for i, lines in self.logs.items() if i not in gone}

    def jobs_promote(self, limit: int = 1000) -> list[str]:
        due = [job for job in self._in_state(State.SCHEDULED) if job.run_at <= self.clock.now()]
        due = sorted(due, key=lambda job: job.run_at)[:limit]
        return [self._change(job.id, state=State.QUEUED).queue for job in due]

    def verbs_next_due(self) -> int | None:
        return min((job.run_at for job in self._in_state(State.SCHEDULED)), default=None)

    def jobs_expire(self, limit: int = 1000) -> list[str]:
        expired = self._expire(limit)
        if expired:
            self._pass_on()
        return [job.id for job in expired]

    def _expire(self, limit: int) -> list[Job]:
        over = [(job.expires_at, job.id) for job in self._in_state(*UNSTARTED) if job.expires_at is not None]
        over = sorted(each for each in over if each[0] <= self.clock.now())[:limit]
        # Whether it has children is checked only at fan-out.
        return [self._end(job_id, State.CANCELLED, Reason.EXPIRED, fanout_pending=True) for _, job_id in over]

    def verbs_prune(self, retention: Retention) -> int:
        now, cutoffs = self.clock.now(), retention.cutoffs(self.clock.now())

        def is_past(job: Job) -> bool:
            in_window = job.unique_lock is not None and job.unique_until is not None and job.unique_until > now
            ended = job.finished_at is not None and job.finished_at < cutoffs.get(job.state, -1)
            if job.keep_us is not None and job.finished_at is not None:
                ended = job.state in cutoffs and job.finished_at + job.keep_us <= now
            may_go = self._may_go(job, with_workflow=job.workflow_id is not None)
            return ended and may_go and not in_window

        gone: list[str] = []
        while found := self._prune_once(cutoffs, now, is_past):
            gone += found
        return len(gone)

    def _prune_once(self, cutoffs: dict[str, int], now: int, is_past: Callable[[Job], bool]) -> list[str]:
        """Removes what no child needs now; that may let others go."""
        gone: list[str] = []
        for state in cutoffs:
            gone += [job.id for job in self._in_state(state) if job.workflow_id is None and is_past(job)]
        self._remove(gone)
        with_own = [job for job in self.jobs.values() if job.keep_us is not None and job.workflow_id is not None]
        is_some_time_over = any(
            job.finished_at is not None and job.finished_at + (job.keep_us or 0) <= now for job in with_own
        )
        for workflow in list(self.workflows.values()):
            jobs = [job for job in self.jobs.values() if job.workflow_id == workflow.id]
            is_old = bool(cutoffs) and workflow.created_at < (now if is_some_time_over else max(cutoffs.values()))
            if is_old and all(is_past(job) for job in jobs):
                gone += [job.id for job in jobs]
                self._remove([job.id for job in jobs])
                del self.workflows[workflow.id]
        return gone

    def history_stats(self, window_us: int) -> JobStats:
        now = self.clock.now()
        counts: dict[str, dict[str, int]] = {}
        for job in self.jobs.values():
            by_state = counts.setdefault(job.queue, {})
            by_state[job.state] = by_state.get(job.state, 0) + 1
        oldest: dict[str, int] = {}
        for job in self._in_state(State.QUEUED):
            oldest[job.queue] = max(oldest.get(job.queue, 0), now - job.run_at)
        ended = [job for job in self._in_state(*FINAL) if (job.finished_at or 0) >= now - window_us]
        ran = sorted(
            job.finished_at - job.started_at
            for job in ended
            if job.state == State.COMPLETED and job.finished_at is not None and job.started_at is not None
        )
        p50, p95 = (ran[len(ran) * p // 100] if ran else None for p in (50, 95))
        return JobStats(counts, oldest, dict(Counter(job.state for job in ended)), window_us, p50, p95)

    # Claimed jobs

    def work_exchange(
        self, worker_id: str, settlements: Sequence[Settlement], demand: Demand, *, durable: bool = False
    ) -> Exchange:
        settled, ended = self._settle(worker_id, settlements)
        promoted: list[str] = []
        claims: list[Claim] = []
        if demand.limit + demand.ahead:
            if demand.tends:
                ended += self._expire(1000)
                promoted = self.jobs_promote()
            claims = self._claim(worker_id, demand)
        if any(job.fanout_pending for job in ended):
            self._pass_on()
        return Exchange(settled, promoted, claims)

    def verbs_claim(self, worker_id: str, demand: Demand) -> list[Claim]:
        return self.work_exchange(worker_id, (), demand).claims

    def verbs_settle(self, worker_id: str, settlements: Sequence[Settlement], *, durable: bool = False) -> Settled:
        return self.work_exchange(worker_id, settlements, _NO_CLAIMS, durable=durable).settled

    def outcomes_leave(self, worker_id: str, ended: Sequence[tuple[Settlement, Sequence[NewJob]]]) -> None:
        for settlement, _ in ended:
            if self._holds(worker_id, settlement.id, settlement.claim):
                # Without the key that the worker has found: the next one finds it again.
                left = settlement._replace(key=None), self.clock.now(), self.clock.steady()
                self.left.setdefault((worker_id, settlement.id, settlement.claim), left)

    def work_grow(
        self, worker_id: str, settlement: Settlement, new: Sequence[NewJob], *, durable: bool = False
    ) -> Settled:
        with self.transaction():
            settled, ended = self._settle(worker_id, [settlement])
            is_asked = bool(ended) and ended[0].cancel_requested_at is not None
            if ended:
                self._add_queues(job.queue for job in new)
                self._insert(new)
            written = [self.jobs[job.id] for job in new if is_asked and job.id in self.jobs]
            for job in written:
                if job.state in UNSTARTED:
                    self._end(job.id, State.CANCELLED, Reason.USER, cancel_requested_at=self.clock.now())
        if (is_asked and new) or any(job.fanout_pending for job in ended):
            self._pass_on()
        return settled

    def _settle(self, worker_id: str, settlements: Sequence[Settlement]) -> tuple[Settled, list[Job]]:
        settled = Settled([], [], [], [], [])
        written: dict[str, Job] = {}
        for given in settlements:
            settlement = given
            if self._holds(worker_id, given.id, given.claim):
                if given.state == State.FAILED and given.reason is None:  # which the tables refuse
                    settled.refused.append(given.id)
                    settlement = model.unstorable(given, "")
                written[given.id] = self._write_end(worker_id, settlement)
                if given.state != State.CANCELLED == written[given.id].state:
                    settled.cancelled.append(given.id)
            elif given.id not in written:
                known = settled.already if self.stands(worker_id, given) else settled.stale
                known.append(given.id)
        return settled, list(written.values())

    def _holds(self, worker_id: str, job_id: str, claim: int) -> bool:
        """Checks the fence: only the holder of the claim may end this job or report on it."""
        job = self.jobs.get(job_id)
        return job is not None and (job.worker_id, job.claim, job.state) == (worker_id, claim, State.RUNNING)

    def _may_tell(self, worker_id: str, job_id: str, claim: int) -> bool:
        """A worker whose body completed the job in a transaction may still write its progress and logs."""
        job = self.jobs.get(job_id)
        is_own = job is not None and (job.worker_id, job.claim) == (worker_id, claim)
        return job is not None and is_own and job.state in {State.RUNNING, State.COMPLETED}

    def stands(self, worker_id: str, given: Settlement) -> bool:
        """Returns whether this worker already ended this claim. A release or a snooze leaves no trace."""
        job = self.jobs.get(given.id)
        if job is None:
            return False
        recorded = self.attempts.get((given.id, given.claim))
        if recorded is not None:
            return recorded.worker_id == worker_id and recorded.outcome != Outcome.CRASHED
        return (job.worker_id, job.claim, job.state) == (worker_id, given.claim, State.COMPLETED)

    def _write_end(self, worker_id: str, given: Settlement, *, crashed: bool = False) -> Job:
        job, now, steady = self.jobs[given.id], self.clock.now(), self.clock.steady()
        started_at = job.started_at if crashed else now - (steady - given.started)
        finished_at = now - (steady - given.finished)
        for rate in given.unspent:
            assert job.started_at is not None
            self._give_back(job.started_at, *rate)
        if given.outcome not in {None, Outcome.COMPLETED}:
            self._record(job, worker_id, str(given.outcome), started_at, finished_at, given)
        job = self._change(
            job.id,
            attempt=job.attempt - given.gives_back,
            crashes=job.crashes + crashed,
            error=job.error if given.keeps_error else given.error,
            result=given.result,
            args=None if given.drops_args else job.args,
            key=given.key or job.key,
        )
        times = {"started_at": started_at, "finished_at": finished_at}
        is_asked = job.cancel_requested_at is not None
        if given.state in FINAL:
            if is_asked and crashed:
                return self._end(job.id, State.CANCELLED, Reason.USER, **times)
            return self._end(job.id, given.state, given.reason, **times)
        run_at = job.run_at if given.delay_us is None else now + given.delay_us
        self._change(job.id, run_at=run_at, progress=None, progress_message=None)
        if is_asked:
            return self._end(job.id, State.CANCELLED, Reason.USER, **times)
        return self._change(job.id, state=given.state, worker_id=None, started_at=None)

    def _record(
        self,
        job: Job,
        worker_id: str | None,
        outcome: str,
        started_at: int | None,
        finished_at: int | None,
        given: Settlement | None = None,
    ) -> None:
        error = (given.error_type, given.error_message, given.traceback) if given else (None, None, None)
        attempt = Attempt(
            job.id,
            job.claim,
            job.attempt,
            worker_id,
            outcome,
            *error,
            started_at,
            finished_at,
            given.error_class if given else None,
        )
        self.attempts.setdefault((job.id, job.claim), attempt)
        recorded = sorted(key for key in self.attempts if key[0] == job.id)
        for key in recorded[: -self.attempts_kept]:
            del self.attempts[key]

    def _claim(self, worker_id: str, demand: Demand) -> list[Claim]:
        if not self.is_live(worker_id):
            return []
        claims: list[Claim] = []
        limit, ahead, in_turn, may_have_stopped = demand.limit, demand.ahead, demand.ahead_in_turn, False
        for queue in demand.queues:
            if self._is_gated(queue):
                rest = demand._replace(limit=limit, ahead=ahead, ahead_in_turn=in_turn)
                taken = self._claim_in_turns(worker_id, queue, rest)
                count = len(taken)
                # Before a job that counts, claiming ahead stops, in the queues that follow too.
                may_have_stopped |= count >= limit
            elif may_have_stopped and not any(self.jobs[job_id].queue == queue for job_id in self.claimed):
                continue
            else:
                ready = self._ready(queue, demand.tasks)[: limit + ahead]
                taken = [self._start(worker_id, job) for job in self._takeable(ready, limit)]
                count = len(ready)
            claims += taken
            ahead -= max(0, count - limit)
            in_turn -= max(0, count - limit)
            limit -= min(limit, count)
        return claims

    def _takeable(self, ready: Sequence[Job], limit: int) -> list[Job]:
        return [
            job
            for place, job in enumerate(ready)
            if place < limit or _may_be_claimed_ahead(job)
            if job.expires_at is None or job.expires_at > self.clock.now()
        ]

    def _ready(self, queue: str, tasks: Sequence[str]) -> list[Job]:
        known = self.queues.get(queue)
        if known is not None and known.paused_at is not None:
            return []
        ready = [job for job in self._in_state(State.QUEUED) if job.queue == queue and job.task in tasks]
        return sorted(ready, key=rank)

    def _is_gated(self, queue: str) -> bool:
        """Whether claims from a queue have to mind limits or keys."""
        limits = self._limits()
        return any(job.queue == queue and limits.counts(job) for job in self._in_state(State.QUEUED)) or any(
            (rule.scope, rule.name) == ("queue", queue) for rule in limits.rules
        )

    def _claim_in_turns(self, worker_id: str, queue: str, demand: Demand) -> list[Claim]:
        """Claims what the databases have claimed, after a look at whether they were allowed to, one by one."""
        claims: list[Claim] = []
        laps: Counter[tuple[str, int, str]] = Counter()
        last_keys = dict(self.last_keys)
        for job in [self.jobs[job_id] for job_id in self.claimed if self.jobs[job_id].queue == queue]:
            wrong = complaint(job, self._startable(queue, demand.tasks), laps, last_keys.get((queue, job.task), ""))
            assert wrong is None, f"{job.id} of {queue}, {job.task}, {job.key} {wrong}"
            assert len(claims) < self._most(job, demand), f"{job.id} is one too many"
            if job.key is not None:
                laps[job.task, job.priority, job.key] += 1
                self.last_keys[queue, job.task] = job.key
            claims.append(self._start(worker_id, job))
        left = self._startable(queue, demand.tasks)
        assert not left or len(claims) >= demand.limit, f"{left} could start"
        return claims

    def _most(self, job: Job, demand: Demand) -> int:
        """How many jobs may be claimed with this one: ahead only without a limit, and fewer if it has a key."""
        if any(self._limits().over(job)):
            return demand.limit
        return demand.limit + (demand.ahead if job.key is None else demand.ahead_in_turn)

    def _startable(self, queue: str, tasks: Sequence[str]) -> list[Job]:
        limits = self._limits()
        return [job for job in self._ready(queue, tasks) if limits.has_room(job)]

    def _limits(self) -> Limits:
        rules = [rule for rule in self.limits.values() if rule.in_force]
        return Limits(rules, self.jobs.values(), self.starts, self.clock.now())

    def _start(self, worker_id: str, job: Job) -> Claim:
        limits = self._limits()
        if limits.counts(job):
            self.held[job.id] = True
        starts = sorted(limits.spent(job))
        for start in starts:
            self.starts[start] = self.starts.get(start, 0) + 1
        job = self._change(
            job.id,
            state=State.RUNNING,
            worker_id=worker_id,
            claim=job.claim + 1,
            attempt=job.attempt + 1,
            started_at=self.clock.now(),
            unique_lock=None if job.unique_scope == "queued" else job.unique_lock,
        )
        spans_queues = any(rule.scope == "task" for rule in limits.over(job))
        known = {name: getattr(job, name) for name in Claim._fields if hasattr(job, name)}
        spent = () if job.key is not None else tuple((scope, name, period) for scope, name, _, period, _ in starts)
        return Claim(**known, held=job.id in self.held, spans_queues=spans_queues, spent=spent)

    def _give_back(self, began_at: int, scope: str, name: str, period_us: int) -> None:
        """A start does not count after all: one less in the first slice after it, while a rate still counts it."""
        now = self.clock.now()
        after = [
            start
            for start in self.starts
            if start[:4] == (scope, name, "", period_us) and began_at < start[4] <= now + period_us
        ]
        if after and began_at > now - period_us:
            first = min(after)
            self.starts[first] -= 1
            if not self.starts[first]:
                del self.starts[first]

    def has_turns(self) -> bool:
        """Whether a claim may have to mind limits or keys."""
        return bool(self._limits().rules) or any(job.key is not None for job in self._in_state(*LIVE))

    def fair(self, demand: Demand) -> Demand:
        """A demand without jobs that are picked and then not claimed: how many others are claimed in their place,
        where there are limits, is each database's own."""
        jobs = [job for job in self._in_state(*LIVE) if job.queue in demand.queues]
        if all(map(_may_be_claimed_ahead, jobs)):
            return demand._replace(tends=True)
        return demand._replace(tends=True, ahead=0, ahead_in_turn=0)

    def verbs_probe(self, demand: Demand) -> bool:
        return any(self._startable(queue, demand.tasks) for queue in demand.queues)

    # Limits

    def limits_all(self) -> list[StoredRule]:
        return [rule for _, rule in sorted(self.limits.items())]

    def limits_say(self, scope: Scope, name: str, source: Source, bounds: Bounds) -> bool:
        own = [rule for rule in self.limits_all() if (rule.scope, rule.name) == (scope, name)]
        if said_by(own, source) == dict(bounds):
            return False
        since = {rule._replace(changed_at=None): rule.changed_at for rule in own}
        rules = [rule._replace(changed_at=None) for rule in merged(own, scope, name, source, bounds)]
        self.limits = {key: rule for key, rule in self.limits.items() if rule not in own}
        for rule in rules:
            key = rule.scope, rule.name, rule.kind, rule.source, rule.period_us
            self.limits[key] = rule._replace(changed_at=since.get(rule, self.clock.now()))
        if any(rule.in_force for rule in rules):
            for job in self._in_state(State.RUNNING):
                if name == (job.task if scope == "task" else job.queue):
                    self.held[job.id] = True
        counted = {(rule.kind, rule.period_us) for rule in own if rule.in_force}
        for rule in rules:
            if rule.in_force and rule.period_us and (rule.kind, rule.period_us) not in counted:
                self._count_what_started(rule)
        return True

    def _count_what_started(self, rule: StoredRule) -> None:
        """Under rates with other periods: each start at the end of a slice of the new one."""
        now, period_us = self.clock.now(), rule.period_us
        span = max(1, period_us // 100)
        noted: Counter[tuple[str, int, int]] = Counter()
        for (scope, name, key, source, at), n in self.starts.items():
            if (scope, name, bool(key)) != (rule.scope, rule.name, rule.kind == Kind.KEY_RATE) or source == period_us:
                continue
            if now - period_us < at <= now + source:
                noted[key, -(-min(at, now) // span) * span, source] += n
        for (key, at, _), n in noted.items():
            start = rule.scope, rule.name, key, period_us, at
            self.starts[start] = max(n, self.starts.get(start, 0))

    def limits_prune_starts(self, limit: int) -> int:
        now = self.clock.now()
        over = [key for key in self.starts if not now - key[3] < key[4] <= now + 2 * key[3]][:limit]
        for key in over:
            del self.starts[key]
        return len(over)

    def limits_park(self, limit: int) -> list[str]:
        """This release parks what has a key wherever it becomes ready."""
        return []

    def parked(self) -> dict[str, bool]:
        """The queued jobs that take turns."""
        return {job.id: True for job in self._in_state(State.QUEUED) if job.key is not None}

    def verbs_progress(
        self, worker_id: str, reports: Sequence[tuple[str, int, float | None, str | None]]
    ) -> list[bool]:
        noted: list[bool] = []
        for job_id, claim, percent, message in reports:
            noted.append(self._may_tell(worker_id, job_id, claim))
            if noted[-1]:
                self._change(job_id, progress=percent, progress_message=message)
        return noted

    # History

    def history_attempts(self, job_id: str) -> list[Attempt]:
        return [attempt for key, attempt in sorted(self.attempts.items()) if key[0] == job_id]

    def verbs_write_logs(self, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
        written = [self._may_tell(worker_id, line.job_id, line.claim) for line in lines]
        for line in [line for line, was_written in zip(lines, written, strict=True) if was_written]:
            kept = replace(line, at=self.clock.now() - (self.clock.steady() - line.at))
            self.logs[line.job_id] = (*self.logs.get(line.job_id, ()), kept)[-self.log_lines :]
        return written

    def history_log_lines(self, job_id: str) -> list[tuple[int, LogLine]]:
        return list(enumerate(self.logs.get(job_id, ()), 1))

    # Queues

    def queues_upsert(self, name: str, priority: int) -> None:
        known = self.queues.get(name, Queue(name, priority, None, self.clock.now()))
        self.queues[name] = replace(known, priority=priority)

    def queues_pause(self, name: str) -> bool:
        known = self.queues.setdefault(name, Queue(name, 0, None, self.clock.now()))
        if known.paused_at is None:
            self.queues[name] = replace(known, paused_at=self.clock.now())
        return known.paused_at is None

    def queues_resume(self, name: str) -> bool:
        is_paused = name in self.queues and self.queues[name].paused_at is not None
        if is_paused:
            self.queues[name] = replace(self.queues[name], paused_at=None)
        return is_paused

    def queues_all(self) -> list[Queue]:
        return [queue for _, queue in sorted(self.queues.items())]

    # Workers

    def workers_register(self, worker: NewWorker, lease_us: int) -> None:
        given: dict[str, Any] = {field.name: getattr(worker, field.name) for field in fields(worker)}
        given |= dict.fromkeys(("started_at", "last_seen_at"), self.clock.now())
        given |= {"state": "active", "lease_until": self.clock.steady() + lease_us, "stopped_at": None}
        self._add_queues(worker.queues)
        self.workers.setdefault(worker.id, Worker(**given))

    def workers_beat(self, worker_id: str, lease_us: int, state: str = "active", *, durable: bool = False) -> Beat:
        lease_until = self.clock.steady() + lease_us
        is_alive = self._change_worker(worker_id, state=state, lease_until=lease_until)
        running = [job for job in self._in_state(State.RUNNING) if job.worker_id == worker_id]
        return Beat(is_alive, [Held(job.id, job.claim, job.cancel_requested_at is not None) for job in running])

    def _change_worker(self, worker_id: str, **changes: Any) -> bool:
        worker = self.workers.get(worker_id)
        if worker is None or worker.state not in LIVE_WORKER:
            return False
        self.workers[worker_id] = replace(worker, last_seen_at=self.clock.now(), **changes)
        return True

    def workers_deregister(self, worker_id: str) -> bool:
        for duty, lease in self.leases.items():
            if lease.holder == worker_id:
                self.leases[duty] = replace(lease, holder=None)
        return self._change_worker(worker_id, state="stopped", stopped_at=self.clock.now())

    def is_live(self, worker_id: str | None) -> bool:
        return worker_id in self.workers and self.workers[worker_id].state in LIVE_WORKER

    def workers_all(self, limit: int = 1000) -> list[Worker]:
        newest = sorted(self.workers.values(), key=lambda worker: worker.id, reverse=True)
        return sorted(newest, key=lambda worker: worker.state not in LIVE_WORKER)[:limit]

    def verbs_overdue(self) -> list[DeathVerdict]:
        steady = self.clock.steady()
        late = [w for w in self.workers.values() if w.state in LIVE_WORKER and w.lease_until < steady]
        return [DeathVerdict(worker.id, worker.lease_until) for worker in late]

    def workers_prune(self, before: int) -> int:
        busy = {job.worker_id for job in self._in_state(State.RUNNING)}
        ended = [w.id for w in self.workers.values() if w.stopped_at is not None and w.stopped_at < before]
        gone = [worker_id for worker_id in ended if worker_id not in busy]
        for worker_id in gone:
            del self.workers[worker_id]
        return len(gone)

    def workers_rescue(self, verdicts: Sequence[DeathVerdict], *, rng: Rng, limit: int = 1000) -> list[Rescued]:
        for worker_id, lease_until in verdicts:
            worker = self.workers.get(worker_id)
            if worker is not None and worker.state in LIVE_WORKER and worker.lease_until == lease_until:
                self.workers[worker_id] = replace(worker, state="dead", stopped_at=self.clock.now())
        orphans = [job for job in self._in_state(State.RUNNING) if not self.is_live(job.worker_id)][:limit]
        rescued: list[Rescued] = []
        ended = [job for job in orphans if self._left_by(job) is not None]
        for job in orphans:
            if job in ended:
                continue
            crash = model.crashed(
                job.id,
                job.claim,
                job.worker_id,
                task=job.task,
                attempts_left=job.max_attempts - job.attempt,
                crashes_left=job.max_crashes - job.crashes - 1,
                crashes=job.crashes + 1,
                rng=rng,
                at=self.clock.steady(),
            )
            state = self._write_end(str(job.worker_id), crash, crashed=True).state
            rescued.append(Rescued(job.id, job.claim, job.worker_id, state, job.queue))
        for job in ended:
            left, now, steady = self._left_by(job)
            # Only the wall clock can tell how long ago that was: the rescuer may be on another machine.
            later = self.clock.steady() - steady - max(0, self.clock.now() - now)
            shifted = left._replace(started=left.started + later, finished=left.finished + later)
            self._settle(str(job.worker_id), [shifted])
            state = self.jobs[job.id].state
            rescued.append(Rescued(job.id, job.claim, job.worker_id, state, job.queue, had_ended=True))
            if self.jobs[job.id].fanout_pending:
                self._pass_on()  # each is written as its worker would have: its children are told before the next one
        if rescued:
            self._pass_on()
        return rescued

    def _left_by(self, job: Job) -> Any:
        """What the worker of a job has left of its outcome, with both clocks at that moment; None: nothing."""
        return self.left.get((str(job.worker_id), job.id, job.claim))

    # Duties

    def leases_take(self, duty: str, holder: str) -> int | None:
        lease = self.leases.get(duty, Lease(duty, None, 0, 0))
        if lease.holder == holder:
            return lease.term
        if self.is_live(lease.holder):
            return None
        self.leases[duty] = Lease(duty, holder, lease.term + 1, self.clock.now())
        return lease.term + 1

    def verbs_is_held(self, duty: str, holder: str, term: int) -> bool:
        lease = self.leases.get(duty)
        return lease is not None and (lease.holder, lease.term) == (holder, term)

    def leases_resign(self, duty: str, holder: str, term: int) -> bool:
        is_held = self.verbs_is_held(duty, holder, term)
        if is_held:
            self.leases[duty] = replace(self.leases[duty], holder=None)
        return is_held

    def leases_all(self) -> list[Lease]:
        return [lease for _, lease in sorted(self.leases.items())]

    # Schedules

    def schedules_upsert(self, schedule: Schedule) -> bool:
        known = self.schedules.get(schedule.name, replace(schedule, last_at=None, paused_at=None))
        if schedule.name in self.schedules and same_rule(known, schedule):
            return False
        kept = {"last_at": known.last_at, "created_at": known.created_at, "paused_at": known.paused_at}
        self.schedules[schedule.name] = replace(schedule, **kept, updated_at=self.clock.now())
        return True

    def schedules_get(self, name: str) -> Schedule | None:
        return self.schedules.get(name)

    def schedules_all(self) -> list[Schedule]:
        return [schedule for _, schedule in sorted(self.schedules.items())]

    def schedules_due(self, limit: int = 100) -> list[Schedule]:
        waiting = [(s.next_at, s) for s in self.schedules_all() if s.next_at is not None and not s.paused_at]
        due = [each for each in waiting if each[0] <= self.clock.now()]
        return [schedule for _, schedule in sorted(due, key=lambda each: each[0])[:limit]]

    def schedules_upcoming(self) -> tuple[int | None, int]:
        waiting = [s.next_at for s in self.schedules.values() if s.next_at is not None and not s.paused_at]
        return min(waiting, default=None), self.clock.now()

    def schedules_change(self, stored: Schedule, wanted: Schedule) -> bool:
        known = self.schedules.get(stored.name)
        if known is None or (known.next_at, known.updated_at) != (stored.next_at, stored.updated_at):
            return False
        kept = {"last_at": known.last_at, "created_at": known.created_at, "paused_at": known.paused_at}
        self.schedules[stored.name] = replace(wanted, name=stored.name, **kept, updated_at=self.clock.now())
        return True

    def schedules_fire(
        self, schedule: Schedule, *, next_at: int | None, last_at: int | None, new: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        stored = self.schedules.get(schedule.name)
        if stored is None or stored.paused_at is not None:
            return None
        if schedule.next_at is None or stored.next_at != schedule.next_at:
            return None
        if stored.updated_at != schedule.updated_at:
            return None
        last_at = stored.last_at if last_at is None else last_at
        fired: list[Enqueued] = []
        with self.transaction():
            self.schedules[schedule.name] = replace(stored, next_at=next_at, last_at=last_at)
            for job in new:
                blocking = self._in_state(*blocking_states(schedule.overlap))
                if all(other.schedule != schedule.name for other in blocking):
                    self._add_queues([job.queue])
                    fired += self._insert([job])
        return fired

    def schedules_pause(self, name: str) -> bool:
        is_running = name in self.schedules and self.schedules[name].paused_at is None
        if is_running:
            self.schedules[name] = replace(self.schedules[name], paused_at=self.clock.now())
        return is_running

    def schedules_resume(self, name: str, next_at: int | None) -> bool:
        is_paused = name in self.schedules and self.schedules[name].paused_at is not None
        if is_paused:
            self.schedules[name] = replace(self.schedules[name], paused_at=None, next_at=next_at)
        return is_paused

    def schedules_delete(self, name: str) -> bool:
        return self.schedules.pop(name, None) is not None

    # Graphs

    def graph_fan_out(self, limit: int = 1000) -> FanOut:
        """Takes the oldest parent first. The databases may use another order, as long as it is the same in both."""
        pending = {job.id for job in self.jobs.values() if job.fanout_pending}
        ready = [edge for edge, satisfied in self.edges.items() if satisfied == 0 and edge[0] in pending]
        decided = [
            (child, parent, decide_edge(self.jobs[parent].state, self.jobs[child].on_parent_failure))
            for parent, child in sorted(ready)[:limit]
        ]
        for child, parent, edge in sorted(decided, key=lambda each: each[2] is not Edge.CANCEL):
            self.edges[parent, child] = edge.satisfied
            if self.jobs[child].state == State.WAITING and edge is Edge.CANCEL:
                self._end(child, State.CANCELLED, Reason.PARENT)
            elif self.jobs[child].state == State.WAITING and edge is Edge.FREE:
                self._free(child)
        for job_id in pending:
            self.jobs[job_id] = replace(self.jobs[job_id], fanout_pending=self._has_open_edges(job_id))
        return FanOut(len(decided), any(job.fanout_pending for job in self.jobs.values()))

    def _free(self, child_id: str) -> None:
        child = self.jobs[child_id]
        due = State.SCHEDULED if child.run_at > self.clock.now() else State.QUEUED
        left = child.waiting_on - 1
        self._change(child_id, waiting_on=left, state=child.state if left else due)

    def _pass_on(self) -> None:
        while not self.is_cut_off and self.graph_fan_out().left:
            pass

    def graph_reconcile(self) -> Reconciled:
        """Nothing is ever lost here, so there is nothing to repair: any result that is not empty is a defect."""
        return Reconciled([], [])

    def graph_lost(self, job_id: str) -> Lost:
        """The parents, and theirs, that keep a job from starting over; in no order."""
        found: dict[str, Job] = {}
        level = [job_id]
        while level:
            lost = [
                self.jobs[parent]
                for parent, child in self.edges
                if child in level
                and decide_edge(self.jobs[parent].state, self.jobs[child].on_parent_failure)
                in {Edge.CANCEL, Edge.HOLD}
            ]
            level = [parent.id for parent in lost if parent.id not in found]
            found |= {parent.id: parent for parent in lost}
        culprits = [job for job in found.values() if job.reason != Reason.PARENT]
        orphans = [
            job.id
            for job in self.jobs_get([job_id, *found])
            if job.reason == Reason.PARENT and not self._count_edges(job.id, -1)
        ]
        shown = [Culprit(job.id, job.task, job.step, job.state, job.reason, job.workflow_id) for job in culprits]
        return Lost(tuple(shown), tuple(orphans))

    def graph_edges(self, job_id: str) -> list[tuple[str, str, int]]:
        return [(*edge, satisfied) for edge, satisfied in sorted(self.edges.items()) if job_id in edge]

    def workflows_get(self, workflow_id: str) -> tuple[Workflow, Tally] | None:
        found = self.workflows.get(workflow_id)
        return None if found is None else (found, self._tally(workflow_id))

    def _tally(self, workflow_id: str) -> Tally:
        steps = {job.id: job for job in self.jobs.values() if job.workflow_id == workflow_id}
        tolerated = Counter[str]()
        for job in steps.values():
            policies = {steps[c].on_parent_failure for p, c in self.edges if p == job.id and c in steps}
            if job.state in {State.FAILED, State.CANCELLED} and policies == {"run"}:
                tolerated[job.state] += 1
        return Tally(dict(Counter(job.state for job in steps.values())), dict(tolerated))

    def workflows_names(self, ids: Sequence[str]) -> dict[str, str]:
        return {i: self.workflows[i].name for i in ids if i in self.workflows}

    def workflows_has_name(self, name: str) -> bool:
        return any(workflow.name == name for workflow in self.workflows.values())

    def workflows_newest(self, *, limit: int = 100, before: str = "g") -> list[Workflow]:
        newest = sorted(self.workflows.items(), reverse=True)
        return [workflow for workflow_id, workflow in newest if workflow_id < before][:limit]

    def workflows_jobs(self, workflow_id: str, states: frozenset[str]) -> list[str]:
        return [job.id for job in self._in_state(*states) if job.workflow_id == workflow_id]

    def workflows_tallies(self, ids: Sequence[str]) -> dict[str, Tally]:
        return {i: self._tally(i) for i in ids}

    def workflows_step(self, workflow_id: str, step: str) -> str | None:
        found = (job.id for job in self.jobs.values() if (job.workflow_id, job.step) == (workflow_id, step))
        return next(found, None)

    def workflows_drawing(self, workflow_id: str) -> Drawing:
        jobs = [job for _, job in sorted(self.jobs.items()) if job.workflow_id == workflow_id]
        ids = {job.id for job in jobs}
        edges = sorted((edge for edge in self.edges if edge[1] in ids), key=lambda edge: edge[::-1])
        nodes = [Node(job.id, job.step, job.task, job.state, job.reason, job.error) for job in jobs]
        return Drawing(nodes, edges, self._tally(workflow_id))

    def workflows_moved_by(self, workflow_id: str, limit: int = 500) -> list[str]:
        def waits(job: Job) -> bool:
            return job.state == State.WAITING and job.workflow_id == workflow_id

        open_edges = [edge for edge, satisfied in self.edges.items() if satisfied == 0]
        movers = {p for p, c in open_edges if waits(self.jobs[c]) and not waits(self.jobs[p])}
        return sorted(movers)[:limit]


def _may_be_claimed_ahead(job: Job) -> bool:
    return job.attempt + 1 < job.max_attempts and job.crashes == 0


def _later(at: int, us: int | None) -> int | None:
    return None if us is None else at + us
