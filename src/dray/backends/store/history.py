"""What is kept of the past, for how long, and the numbers drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dray.backends.database import Database, Row, Session
from dray.model.attempt import Attempt
from dray.model.limits import PRUNE_CHUNK
from dray.model.retention import Retention

_DURATIONS = 1_000  # newest bodies that the percentiles are taken over
_WORKFLOWS = 100  # ended workflows looked at in one step


def attempts(db: Database, job_id: str) -> list[Attempt]:
    return [Attempt(*row) for row in db.read(lambda tx: tx.rows("attempt_list", id=job_id))]


def prune(db: Database, retention: Retention, limit: int = PRUNE_CHUNK) -> int:
    """Removes at most `limit` jobs; call again while it removes as many."""
    cutoffs = retention.cutoffs(db.now())

    def work(tx: Session) -> int:
        removed = 0
        for state, before in cutoffs.items():
            picked = [row[0] for row in tx.rows("prune_pick", state=state, before=before, limit=limit - removed)]
            if picked:
                removed += len(tx.rows("job_delete", ids=picked))
        if removed < limit and cutoffs:
            removed += _prune_workflows(tx, cutoffs, limit - removed)
        return removed

    return db.write(work, durable=False)


def prunable(db: Database, retention: Retention) -> dict[str, int]:
    cutoffs = retention.cutoffs(db.now())

    def work(tx: Session) -> dict[str, int]:
        found = {state: tx.rows("prune_count", state=state, before=at)[0][0] for state, at in cutoffs.items()}
        if cutoffs:
            ended = tx.rows("prune_count_workflows", newest=max(cutoffs.values()), **_kept(cutoffs))
            for state, jobs in ended:
                found[state] = found.get(state, 0) + jobs
        return found

    return db.read(work)


def _prune_workflows(tx: Session, cutoffs: dict[str, int], limit: int) -> int:
    kept = _kept(cutoffs)
    ids = _enough(tx.rows("workflow_ended", newest=max(cutoffs.values()), limit=_WORKFLOWS, **kept), limit)
    if not ids:
        return 0
    # All of a workflow's jobs, also those of later chunks, or none: one that is started over needs the others.
    whole = [row[0] for row in tx.rows("workflow_prune_pick", ids=ids, **kept)]
    picked = [row[0] for row in tx.rows("workflow_prune_chunk", ids=whole, limit=limit)]
    removed = len(tx.rows("job_delete", ids=picked))
    tx.run("workflow_prune", ids=ids)
    return removed


def _enough(found: Sequence[Row], limit: int) -> list[str]:
    """The first of these workflows, as far as it takes to remove so many jobs."""
    ids: list[str] = []
    for workflow_id, jobs in found:
        if limit <= 0:
            break
        ids.append(workflow_id)
        limit -= jobs
    return ids


def _kept(cutoffs: dict[str, int]) -> dict[str, int]:
    """What has no cut-off is kept: nothing ended before 1970."""
    return {state: cutoffs.get(state, 0) for state in ("completed", "failed", "cancelled")}


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers for people: how many jobs, how old, how fast."""

    counts: dict[str, dict[str, int]]  # queue -> state -> jobs
    oldest_queued_us: dict[str, int]  # queue -> how long its first job has been ready
    finished: dict[str, int]  # state -> jobs that ended within the window
    window_us: int
    p50_us: int | None  # of the newest completed bodies in the window
    p95_us: int | None


def stats(db: Database, window_us: int) -> Stats:
    now = db.now()

    def work(tx: Session) -> Stats:
        counts: dict[str, dict[str, int]] = {}
        for queue, state, n in tx.rows("job_counts"):
            counts.setdefault(queue, {})[state] = n
        oldest = {queue: max(0, now - at) for queue, at in tx.rows("job_oldest_queued")}
        finished = dict(tx.rows("job_finished_since", since=now - window_us))
        found = tx.rows("job_durations", since=now - window_us, limit=_DURATIONS)
        ran = sorted(row[0] for row in found)
        p50, p95 = (ran[len(ran) * p // 100] if ran else None for p in (50, 95))
        return Stats(counts, oldest, finished, window_us, p50, p95)

    return db.read(work)
