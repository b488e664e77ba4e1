"""What live views read: bounded questions, each answered off an index however large the tables are.

A reader that follows what happens asks for `Changes` after its positions; all of one result is of one moment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dray.backends.database import FIRST_ID, Later, Row, Session
from dray.backends.store import Store, containing
from dray.backends.store.liveness import Life, lives
from dray.model.job import Queue, State

_RUNNING = 100_000  # running jobs in one look; a view that follows them has to see them all
_NEXT = 500  # of the jobs that are due next, looked at for those that were put back
_WORKERS = 1_000
QUEUES = 1_000  # that a look shows, and that it counts the ready jobs of
QUEUES_COUNTED = 10_000
_NEVER = 4_000_000_000_000_000  # after every instant that a worker can have ended at
_AMONG = 10_000  # running jobs that the longest-running are found among
_HEADS = 500  # pairs of task and priority that the oldest ready job is looked for in
_PULSE = 1_000  # rows of a kind that a pulse compares
_PULSE_ACTIONS = 20


class LiveJob(NamedTuple):
    """A job without its arguments and its result."""

    id: str
    claim: int
    task: str
    queue: str
    state: str
    reason: str | None
    attempt: int
    max_attempts: int
    worker_id: str | None
    error: str | None
    run_at: int
    progress: float | None
    progress_message: str | None
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    step: str | None
    workflow: str | None  # its name


class LiveLine(NamedTuple):
    """A captured log line and the job it belongs to."""

    seq: int
    job_id: str
    at: int
    level: str
    logger: str
    message: str
    task: str
    queue: str


class LiveWorker(NamedTuple):
    """A worker that lives, or has just ended."""

    id: str
    name: str
    host: str
    pid: int
    state: str
    queues: tuple[str, ...]
    concurrency: int
    started_at: int
    last_seen_at: int
    stopped_at: int | None


class Position(NamedTuple):
    """Where a reader is in the order of (finished_at, id)."""

    at: int
    id: str = FIRST_ID


class LookBack(NamedTuple):
    """How far back to look for what came into sight late, and at how many rows of a kind."""

    cancelled_since: int
    enqueued_since: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a reader that follows knows already."""

    running: Collection[tuple[str, int]]  # (id, claim) of what ran at the last look
    ended: Mapping[str, Position]  # by final state
    enqueued_after: str  # ids
    enqueued_until: str
    put_back_since: int
    workers_since: int
    lines_after: int | None  # None: no log lines
    page: int  # rows of one kind
    back: LookBack | None = None


class Changes(NamedTuple):
    """What one look found. Lists as long as the page that was asked for may go on."""

    now: int
    running: list[LiveJob]
    left: list[LiveJob]  # that do not run any more, or not under the same claim
    ended: dict[str, list[LiveJob]]
    enqueued: list[LiveJob]
    put_back: list[LiveJob]
    workers: list[LiveWorker]
    queues: list[Queue]
    lines: list[LiveLine]
    late: list[LiveJob]  # cancelled a while ago
    late_enqueued: list[LiveJob]
    is_idle: bool  # nothing runs, nothing is ready or due


class Panels(NamedTuple):
    """What goes on at one moment."""

    now: int
    running: list[LiveJob]  # those that have been at it longest
    hands: list[tuple[str, str, int]]  # queue, worker, how many jobs
    failures: list[LiveJob]  # newest first
    workers: list[LiveWorker]
    queues: list[Queue]  # paused ones first
    queue_count: int  # of all, counted up to 10,000


class EndRate(NamedTuple):
    """How many of the newest ended since an instant, and when the first of them did."""

    jobs: int
    first_at: int | None


class Numbers(NamedTuple):
    """Counts, none of them above the limits that were asked for."""

    depths: dict[str, int]  # queue -> ready jobs
    oldest: dict[str, int]  # queue -> since when its oldest job has been ready
    counts: dict[str, int]  # by state, but for queued and running
    ended: dict[str, EndRate]  # final state -> the newest since an instant
    enqueued: int  # of the newest ids


class Pulse(NamedTuple):
    """What two looks compare: where a part differs, that has changed. The values mean nothing else."""

    jobs: Row
    queues: Row
    workers: Row
    schedules: Row
    workflows: Row
    logs: Row
    actions: Row


class LiveStore(Store):
    def changes(self, ask: Ask) -> Changes:
        """What has happened since a reader's positions, of one moment; see `ops/tail.py` for what that
        finds for certain."""

        def work(tx: Session) -> Changes:
            # The time first: what is seen of the rest may be a moment newer, never older. All questions are sent
            # before the first answer is read, which is one round trip where there is any.
            now = tx.later("live_now")
            running = tx.later("live_running", limit=_RUNNING)
            ended = {
                state: tx.later("live_ended", state=state, after=place.at, after_id=place.id, limit=ask.page)
                for state, place in ask.ended.items()
            }
            between = {"after_id": ask.enqueued_after, "until_id": ask.enqueued_until}
            enqueued = tx.later("live_enqueued", **between, limit=ask.page)
            put_back = tx.later("live_put_back", since=ask.put_back_since, limit=_NEXT)
            workers = tx.later("live_workers", since=ask.workers_since, limit=_WORKERS)
            queues = tx.later("queue_list")
            after = ask.lines_after
            lines = list[Row] if after is None else tx.later("live_logs", after=after, limit=ask.page)
            late, late_enqueued = _late(tx, ask)
            is_idle = tx.later("live_idle")
            runs = live_jobs(running())
            there = {(job.id, job.claim) for job in runs}
            gone = [job_id for job_id, claim in ask.running if (job_id, claim) not in there]
            return Changes(
                now=now()[0][0],
                running=runs,
                left=live_jobs(tx.rows("live_jobs", ids=gone)) if gone else [],
                ended={state: live_jobs(found()) for state, found in ended.items()},
                enqueued=live_jobs(enqueued()),
                put_back=live_jobs(put_back()),
                workers=live_workers(workers()),
                queues=[Queue(*row) for row in queues()],
                lines=[LiveLine(*row) for row in lines()],
                late=live_jobs(late()),
                late_enqueued=live_jobs(late_enqueued()),
                is_idle=bool(is_idle()[0][0]),
            )

        return self._db.read(work)

    def newest_times(self, limit: int, *, lines: bool) -> list[int]:
        """When the newest events of each kind happened, at most `limit` of each; log lines too, if asked for."""

        def work(tx: Session) -> list[Row]:
            found = tx.rows("live_newest_times", limit=limit)
            return found + tx.rows("live_newest_lines", limit=limit) if lines else found

        return [row[0] for row in self._db.read(work)]

    def last_line(self, since: int | None = None) -> int:
        """The sequence number of the newest log line, or of the newest that is older than an instant; 0: none."""

        def work(tx: Session) -> int:
            high = tx.rows("live_log_last")[0][0]
            if since is None:
                return high
            low = 0  # all up to here are older; the first one after `high` is not
            while low < high:
                middle = (low + high) // 2 + 1
                found = tx.rows("live_log_at", seq=middle)
                if found and found[0][1] < since:
                    low = found[0][0]
                else:
                    high = middle - 1
            return low

        return self._db.read(work)

    def panels(self, limit: int) -> Panels:
        """What runs, what failed and workers, at most `limit` of each, and queues, at most 1,000, at one moment."""

        def work(tx: Session) -> Panels:
            known = lives(self._db, tx)
            now = tx.later("live_now")
            running = tx.later("live_oldest_running", among=_AMONG, limit=limit)
            hands = tx.later("live_hands", among=_AMONG)
            failures = tx.later("live_ended_newest", state=State.FAILED, since=0, limit=limit)
            workers = tx.later("live_workers", since=_NEVER, limit=limit)
            queues = tx.later("live_queues", limit=QUEUES)
            count = tx.later("live_queue_count", limit=QUEUES_COUNTED)
            return Panels(
                now=now()[0][0],
                running=live_jobs(running()),
                hands=[(queue, worker, n) for queue, worker, n in hands()],
                failures=live_jobs(failures()),
                workers=[each for each in live_workers(workers()) if known.get(each.id) is not Life.GONE],
                queues=[Queue(*row) for row in queues()],
                queue_count=count()[0][0],
            )

        return self._db.read(work)

    def queues_named(self, names: Collection[str], limit: int) -> tuple[list[Queue], dict[str, int]]:
        """Queues by name, as far as they are known, and how many jobs are ready in each, counted up to `limit`."""

        def work(tx: Session) -> tuple[list[Queue], dict[str, int]]:
            given = sorted(names)
            queues = tx.later("live_queues_named", names=given)
            depths = tx.later("live_depths_named", names=given, limit=limit)
            return [Queue(*row) for row in queues()], dict(depths())

        return self._db.read(work)

    def queues_like(self, part: str, limit: int) -> list[str]:
        """The names of queues that contain a part, whatever its case."""
        return [row[0] for row in self._read("live_queues_like", pattern=containing(part), limit=limit)]

    def numbers(self, *, since: int, since_id: str, limit: int, counted: int, newest: int) -> Numbers:
        """How many jobs there are: the count of a queue ends at `limit`, that of a state at `counted`. And how many
        of the newest came and ended since an instant (and the id of that instant)."""

        def work(tx: Session) -> Numbers:
            rates = {
                state.value: tx.later("live_rate", state=state, since=since, limit=newest)
                for state in (State.COMPLETED, State.FAILED, State.CANCELLED)
            }
            depths = tx.later("live_depths", limit=limit, queues=QUEUES)
            oldest = tx.later("live_heads", limit=_HEADS)
            counts = tx.later("live_counts", limit=counted)
            enqueued = tx.later("live_rate_enqueued", after_id=since_id, limit=newest)
            return Numbers(
                depths=dict(depths()),
                oldest=_oldest(oldest()),
                counts=dict(counts()),
                ended={state: EndRate(*found()[0]) for state, found in rates.items()},
                enqueued=enqueued()[0][0],
            )

        return self._db.read(work)

    def pulse(self) -> Pulse:
        """What is compared with the pulse before to learn what has changed. As cheap as such a read can be.

        It may miss what no index shows: a job that was removed by code or pruned, a retry of an old failure while
        more than a thousand jobs are ready. A retry or a removal by a person shows as an action.
        """

        def work(tx: Session) -> Pulse:
            jobs = tx.later("pulse_jobs", limit=_PULSE)
            ready = tx.later("pulse_ready", limit=_PULSE)
            running = tx.later("pulse_running", limit=_PULSE)
            queues = tx.later("pulse_queues", limit=_PULSE)
            workers = tx.later("pulse_workers", limit=_PULSE)
            schedules = tx.later("pulse_schedules", limit=_PULSE)
            newest = tx.later("pulse_newest")
            actions = tx.later("pulse_actions", limit=_PULSE_ACTIONS)
            (of_jobs,), (of_ready,), (of_running,), (found,) = jobs(), ready(), running(), newest()
            moving = (*of_jobs, *of_ready, *of_running)
            return Pulse(
                jobs=moving,
                queues=(*queues()[0], *of_ready, *of_running),  # a queue's page shows what waits and runs in it
                workers=(*workers()[0], *of_running),
                schedules=tuple(schedules()[0]),
                workflows=(found[0], *moving),
                logs=(found[1],),
                actions=tuple(actions()),
            )

        return self._db.read(work)


def _late(tx: Session, ask: Ask) -> tuple[Later[list[Row]], Later[list[Row]]]:
    """What was cancelled, and what was enqueued, in the stretch that is looked back at."""
    back = ask.back
    if back is None:
        return list[Row], list[Row]
    return (
        tx.later("live_ended_newest", state=State.CANCELLED, since=back.cancelled_since, limit=back.limit),
        tx.later("live_enqueued_newest", after_id=back.enqueued_since, until_id=ask.enqueued_after, limit=back.limit),
    )


def _oldest(found: list[Row]) -> dict[str, int]:
    """Since when the oldest of each queue is ready: of jobs without a key, and of those with one."""
    oldest: dict[str, int] = {}
    for queue, run_at in found:
        oldest[queue] = min(run_at, oldest.get(queue, run_at))
    return oldest


def live_jobs(found: list[Row]) -> list[LiveJob]:
    return [LiveJob(*row) for row in found]


def live_workers(found: list[Row]) -> list[LiveWorker]:
    return [LiveWorker._make((*row[:5], tuple(json.loads(row[5])), *row[6:])) for row in found]
