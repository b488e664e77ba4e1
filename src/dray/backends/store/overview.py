"""What the pages of queues, workers and the overview read beside the live panels: bounded, off indexes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dray.backends import rows
from dray.backends.database import Session
from dray.backends.store import Store
from dray.backends.store.live import LiveJob, LiveWorker, live_jobs, live_workers
from dray.backends.store.liveness import Life, lives
from dray.model.schedule import Schedule
from dray.model.worker import Lease, Worker

_GROUPS = 1_000  # of failed jobs
_AMONG = 5_000  # of the newest jobs, looked at for those of one queue
_TAKEN_BACK = 1_000  # jobs of a dead worker that are looked at


class Around(NamedTuple):
    """What belongs to the overview beside the live panels, of one moment."""

    now: int
    failing: int  # groups of failed jobs, since the instant that was asked for
    schedules: int  # counted up to a limit
    next_schedules: list[Schedule]
    next_job_at: int | None  # when the next scheduled job is due
    died: list[LiveWorker]  # newest first
    has_jobs: bool
    had_workers: bool
    leases: list[Lease]


class OneWorker(NamedTuple):
    """A worker, what it runs, and what was taken back from it."""

    now: int
    worker: Worker
    is_gone: bool  # its row says that it lives, and it does not: no rescuer has declared it dead yet
    duties: tuple[str, ...]
    running: list[LiveJob]
    taken_back: dict[str, int]  # by the state that the jobs are in now
    taken_back_jobs: list[LiveJob]


class OverviewStore(Store):
    def around(self, *, since: int, limit: int, most: int) -> Around:
        """At most `limit` of each; schedules are counted up to `most`. Workers that died and failures: since then."""

        def work(tx: Session) -> Around:
            now = tx.later("live_now")
            keys = tx.later("failure_keys", limit=_GROUPS)
            schedules = tx.later("overview_schedules", limit=most)
            following = tx.later("overview_schedules_next", limit=limit)
            next_job = tx.later("overview_next_job")
            died = tx.later("overview_died", since=since, limit=limit)
            there = tx.later("overview_any_job")
            leases = tx.later("lease_held")
            jobs, workers = there()[0]
            return Around(
                now=now()[0][0],
                failing=sum(at is not None and at >= since for _, at in keys()),
                schedules=schedules()[0][0],
                next_schedules=[Schedule(*row) for row in following()],
                next_job_at=next((row[0] for row in next_job()), None),
                died=live_workers(died()),
                has_jobs=bool(jobs),
                had_workers=bool(workers),
                leases=[Lease(*row) for row in leases()],
            )

        return self._db.read(work)

    def taken_back(self, worker_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """Worker -> the jobs that were taken back from it, by the state that they are in now."""

        def work(tx: Session) -> dict[str, dict[str, int]]:
            found = {each: tx.later("overview_taken_back", id=each, limit=_TAKEN_BACK) for each in worker_ids}
            return {each: dict(states()) for each, states in found.items()}

        return self._db.read(work)

    def ended_workers(self, limit: int) -> list[LiveWorker]:
        """Workers that stopped or died, newest first."""
        return live_workers(self._read("overview_ended_workers", limit=limit))

    def tasks_of(self, worker_ids: Collection[str]) -> dict[str, list[str]]:
        """The tasks that workers know, by the workers' ids."""
        found = self._read("overview_worker_tasks", ids=sorted(worker_ids))
        return {worker_id: json.loads(tasks) for worker_id, tasks in found}

    def worker(self, worker_id: str, limit: int) -> OneWorker | None:
        """A worker, at most `limit` of the jobs it runs and of those that were taken back from it."""

        def work(tx: Session) -> OneWorker | None:
            found = tx.rows("overview_worker", id=worker_id)
            if not found:
                return None
            known = lives(self._db, tx)
            now = tx.later("live_now")
            leases = tx.later("lease_held")
            running = tx.later("overview_runs_of_worker", id=worker_id, limit=limit)
            taken = tx.later("overview_taken_back", id=worker_id, limit=_TAKEN_BACK)
            jobs = tx.later("overview_taken_back_jobs", id=worker_id, limit=limit)
            return OneWorker(
                now=now()[0][0],
                worker=rows.worker(found[0]),
                is_gone=known.get(worker_id) is Life.GONE,
                duties=tuple(duty for duty, holder, *_ in leases() if holder == worker_id),
                running=live_jobs(running()),
                taken_back=dict(taken()),
                taken_back_jobs=live_jobs(jobs()),
            )

        return self._db.read(work)

    def newest_of_queue(self, queue: str, limit: int) -> list[LiveJob]:
        """Its newest jobs, among the newest 5,000 of all queues."""
        return live_jobs(self._read("overview_queue_newest", queue=queue, among=_AMONG, limit=limit))
