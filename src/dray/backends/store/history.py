"""What is kept of the past, and the numbers drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

from dray.backends.database import Database, Session
from dray.model.job import Attempt

_DURATIONS = 1_000  # newest bodies that the percentiles are taken over


def attempts(db: Database, job_id: str) -> list[Attempt]:
    return [Attempt(*row) for row in db.read(lambda tx: tx.rows("attempt_list", id=job_id))]


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
