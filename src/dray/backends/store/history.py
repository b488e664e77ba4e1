"""What is kept of the past, the numbers drawn from it, and its end.

`prune_steps` forgets jobs that ended long enough ago, with all that belongs to them, in transactions that are short.

What may go is found by reading, which makes no other transaction wait, however much is passed over. Each transaction
then removes as many of the found as a `Budget` allows: it locks them, asks again whether they may go, and counts the
rows of all tables. A job with more rows than one transaction may remove loses its edges to completed children first,
then its log lines and attempts, a part a transaction, and is itself the last to go: a retry meanwhile gets the job
back, without what is gone.

A job stays while a child of it is live, failed or cancelled: the child runs, or may be retried, with its result. What
goes may let its parents go: a pass that removed such children is followed by another.

A workflow goes as a whole: the first transaction that touches it locks and asks all of its jobs. Only one that is
larger than a transaction is removed in parts after that.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple

from dray.backends.database import FIRST_ID, Database, Session
from dray.backends.store import Store
from dray.backends.store.actions import ActionRow
from dray.model.action import NewAction
from dray.model.job import Attempt, LogLine, State
from dray.model.retention import STEP_ROWS, Budget, Retention

_FOUND = 500  # jobs in one look for those that may go
_PASSED = 10_000  # jobs that one such look may pass over
_WORKFLOWS = 1_000  # workflows in one such look
_TRIMS = ("prune_child_edges", "prune_parent_edges", "prune_logs", "prune_attempts")
_DURATIONS = 1_000  # newest bodies that the percentiles are taken over


@dataclass(frozen=True, slots=True)
class JobStats:
    """Numbers for people: how many jobs, how old, how fast."""

    counts: dict[str, dict[str, int]]  # queue -> state -> jobs
    oldest_queued_us: dict[str, int]  # queue -> how long its first job has been ready
    finished: dict[str, int]  # state -> jobs that ended within the window
    window_us: int
    p50_us: int | None  # of the newest completed bodies in the window
    p95_us: int | None


class Pruned(NamedTuple):
    """What one transaction removed, and how long it took."""

    jobs: int
    rows: int  # of all tables
    us: int


class _Old(NamedTuple):
    """A job that may go."""

    id: str
    rows: float  # that it has in all tables; infinite: more than one transaction may remove
    workflow_id: str | None


class _PruneStep(NamedTuple):
    pruned: Pruned
    left: list[_Old]  # what it did not come to
    workflows: list[str]  # those it may remove


class HistoryStore(Store):
    def attempts(self, job_id: str) -> list[Attempt]:
        """The recorded attempts of a job, oldest first, without a completed one that the job itself shows."""
        return [Attempt(*row) for row in self._read("attempt_list", id=job_id)]

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """(sequence number, line) of a job, oldest first, after a sequence number."""
        found = self._read("log_list", id=job_id, after=after, limit=limit)
        return [(seq, LogLine(*line)) for seq, *line in found]

    def stats(self, window_us: int) -> JobStats:
        """Counts by queue and state, age of the oldest ready job, throughput and run times in a window."""
        now = self._db.now()

        def work(tx: Session) -> JobStats:
            counts: dict[str, dict[str, int]] = {}
            for queue, state, n in tx.rows("job_counts"):
                counts.setdefault(queue, {})[state] = n
            oldest = {queue: max(0, now - at) for queue, at in tx.rows("job_oldest_queued")}
            finished = dict(tx.rows("job_finished_since", since=now - window_us))
            found = tx.rows("job_durations", since=now - window_us, limit=_DURATIONS)
            ran = sorted(row[0] for row in found)
            p50, p95 = (ran[len(ran) * p // 100] if ran else None for p in (50, 95))
            return JobStats(counts, oldest, finished, window_us, p50, p95)

        return self._db.read(work)

    def prune_steps(self, retention: Retention, action: NewAction | None = None) -> Iterator[Pruned]:
        """Removes ended jobs past their retention, one transaction a step, bounded in time and in the rows of all
        tables: rest between two, so that others can write. Never one with a child that is live, failed or cancelled;
        jobs of a workflow only once all of them may go, and while no other transaction has locked one of them to
        start it over. A job with a time of its own goes by that, however long others of its state are kept. `action`:
        what a person does with this; each transaction adds to its row."""
        now = self._db.now()
        cutoffs = retention.cutoffs(now)
        under_way = _Pruning(self._db, _kept(cutoffs), action)
        may_free = bool(cutoffs)
        while may_free:
            may_free = False
            for state, before in cutoffs.items():
                removed = yield from under_way.ended(state, before)
                may_free |= removed and state != State.COMPLETED
            may_free |= yield from under_way.single("prune_kept_find", states=sorted(cutoffs))
            newest = self._db.read(lambda tx: _newest(tx, cutoffs, now))
            may_free |= yield from under_way.workflows(newest)

    def prunable(self, retention: Retention) -> dict[str, int]:
        """How many jobs `prune_steps` would remove now, by state; without those that go after their children."""
        now = self._db.now()
        cutoffs = retention.cutoffs(now)

        def work(tx: Session) -> dict[str, int]:
            found = {state: tx.rows("prune_count", state=state, before=at)[0][0] for state, at in cutoffs.items()}
            if cutoffs:
                of_their_own = tx.rows("prune_count_kept", states=sorted(cutoffs))
                newest = _newest(tx, cutoffs, now)
                of_workflows = tx.rows("prune_count_workflows", newest=newest, **_kept(cutoffs))
                for state, jobs in (*of_their_own, *of_workflows):
                    found[state] = found.get(state, 0) + jobs
            return found

        return self._db.read(work)


class _Pruning(Store):
    """What the passes of `prune_steps` do. Each part returns whether it removed a job."""

    def __init__(self, db: Database, kept: dict[str, int], action: NewAction | None) -> None:
        super().__init__(db)
        self._kept = kept
        self._action = action

    def ended(self, state: str, before: int) -> Generator[Pruned, None, bool]:
        """Jobs of a state, one stretch of time after the other: many may be old and have long times of their own, and
        one look must not pass over all of them."""
        after, has_removed = 0, False
        while True:
            reach, count = self._read("prune_reach", state=state, before=before, after=after, limit=_PASSED)[0]
            if not count:
                return has_removed
            has_removed |= yield from self.single("prune_find", state=state, after=after, before=reach + 1)
            if count < _PASSED:
                return has_removed
            yield Pruned(0, 0, 0)  # reading takes its time too
            after = reach + 1

    def single(self, statement: str, **which: object) -> Generator[Pruned, None, bool]:
        """Jobs that are no workflow's."""
        is_last = has_removed = False
        while not is_last:
            old = self._found(statement, **which, limit=_FOUND)
            is_last, removed = len(old) < _FOUND, 0
            while old:
                step = self._remove(old)
                old, removed = step.left, removed + step.pruned.jobs
                yield step.pruned
            has_removed |= removed > 0
            if not removed:  # what is left is locked by others, and would be found again
                break
        return has_removed

    def workflows(self, newest: int) -> Generator[Pruned, None, bool]:
        after, has_removed = FIRST_ID, False
        while rows := self._read("workflow_next", newest=newest, after=after, limit=_WORKFLOWS):
            ids = [row[0] for row in rows]
            after = ids[-1]
            ended = self._read("workflow_ended", ids=ids, **self._kept)
            yield Pruned(0, 0, 0)  # reading takes its time too
            while ended:
                # As many as one look shows whole; one that is larger by itself.
                jobs = accumulate(jobs for _, jobs in ended)
                count = max(1, sum(1 for _ in takewhile(lambda jobs: jobs <= _FOUND, jobs)))
                has_removed |= yield from self._whole([row[0] for row in ended[:count]])
                ended = ended[count:]
        return has_removed

    def _whole(self, ids: list[str]) -> Generator[Pruned, None, bool]:
        """Workflows: each whole, or as much of it as one transaction after the other can take."""
        is_first, has_removed = True, False
        while ids:
            old = self._found("workflow_prune_find", ids=ids, limit=_FOUND)
            if not old and not is_first:
                break
            step = self._remove(old, ids, asks_all=is_first)
            yield step.pruned
            has_removed |= step.pruned.jobs > 0
            if not step.pruned.rows or (len(old) < _FOUND and not step.left):
                break
            is_first, ids = False, step.workflows
        return has_removed

    def _found(self, statement: str, **params: object) -> list[_Old]:
        found = self._read(statement, most=STEP_ROWS, **params)
        return [_Old(job_id, math.inf if rows >= STEP_ROWS else rows, flow) for job_id, rows, flow in found]

    def _remove(self, old: Sequence[_Old], ids: list[str] | None = None, *, asks_all: bool = False) -> _PruneStep:
        """Removes as much of these jobs as one transaction may, and those of these workflows that are empty then."""
        noted = ActionRow(self._action)

        def work(tx: Session) -> _PruneStep:
            budget, jobs, left, workflows = Budget(self._db.clock.steady()), 0, list(old), ids or []
            if asks_all:
                held = {job.workflow_id for job in old}
                whole = {row[0] for row in tx.rows("workflow_prune_pick", ids=workflows, **self._kept)}
                workflows = [each for each in workflows if each in whole or each not in held]
                left = [job for job in old if job.workflow_id in whole]
                budget.spend(0, self._db.clock.steady())
            while left and (allowed := budget.allowed()):
                if count := budget.fitting(job.rows for job in left):
                    rows_of, left = {job.id: int(job.rows) for job in left[:count]}, left[count:]
                    gone = _delete(tx, list(rows_of), self._kept, are_steps=ids is not None)
                    jobs, rows = jobs + len(gone), sum(rows_of[job_id] for job_id in gone)
                else:
                    rows = _trim(tx, left[0].id, allowed, self._kept)
                    left[0] = left[0]._replace(rows=left[0].rows - rows if rows == allowed else 1)
                budget.spend(rows, self._db.clock.steady())
            if workflows:
                budget.spend(tx.run("workflow_prune", ids=workflows), self._db.clock.steady())
            if jobs:
                noted.add(tx, jobs + noted.done_before(tx), 0)
            return _PruneStep(Pruned(jobs, budget.spent, budget.took_us), left, workflows)

        return self._db.write(work, durable=False)


def _kept(cutoffs: Mapping[str, int]) -> dict[str, int]:
    never = 0  # nothing ended in 1970
    return {state: cutoffs.get(state, never) for state in ("completed", "failed", "cancelled")} | {"never": never}


def _newest(tx: Session, cutoffs: Mapping[str, int], now: int) -> int:
    """Workflows that were made before this instant may have ended long enough ago."""
    return now if tx.rows("prune_kept_steps")[0][0] else max(cutoffs.values())


def _delete(tx: Session, ids: list[str], kept: dict[str, int], *, are_steps: bool) -> list[str]:
    """Those of these jobs that could be removed."""
    picked = [row[0] for row in tx.rows("prune_pick", ids=ids, **kept)]
    statement = "workflow_job_delete" if are_steps else "job_delete"
    return [row[0] for row in tx.rows(statement, ids=picked)] if picked else []


def _trim(tx: Session, job_id: str, limit: int, kept: dict[str, int]) -> int:
    """Removes at most `limit` rows that belong to a job; fewer: it has no more, or may not go."""
    if not tx.rows("prune_pick", ids=[job_id], **kept):
        return 0
    removed = 0
    for statement in _TRIMS:
        removed += len(tx.rows(statement, id=job_id, limit=limit - removed))
        if removed == limit:
            break
    return removed
