"""Jobs of another queue, written with their history: those that have ended, and those that are still to run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from dray.backends.database import Row, Session
from dray.backends.store import Store, graph
from dray.backends.store.actions import ActionRow
from dray.model.action import NewAction
from dray.model.carried import Carried
from dray.model.error_group import error_key
from dray.model.job import Attempt, State


class Written(NamedTuple):
    """What became of a batch; ids that are in neither were there before."""

    fresh: set[str]
    orphans: set[str]  # not written: a job that they run after is not here


class ImportStore(Store):
    def write(self, batch: Sequence[Carried], *, action: NewAction | None = None, left_out: int = 0) -> Written:
        """Writes jobs with their edges, attempts and log lines, all or nothing. One whose id is there stays as it is.

        `left_out`: how many were refused before; the row of the action counts them.
        """
        tried: set[str] = set()
        noted = ActionRow(action)

        def work(tx: Session) -> Written:
            ids = {each.job.id for each in batch}
            parents = {parent for each in batch for parent in each.job.parents}
            there = {row[0] for row in tx.rows("job_find", ids=sorted(ids | parents))}
            fresh, ready = set[str](), set[str]()
            for wave in _waves(batch, there):
                ready.update(each.job.id for each in wave)
                fresh |= _insert(tx, [each for each in wave if each.job.id not in there])
            # What an earlier try of this call has written, whose answer was lost.
            before = tried & there
            tried.update(fresh)
            orphans = ids - ready - there
            noted.add(tx, len(fresh | before), left_out)
            return Written(fresh | before, orphans)

        written = self._db.write(work, many=True)
        queues = {each.job.queue for each in batch if each.state is None and each.job.id in written.fresh}
        if queues:
            self._db.announce(queues)
        return written

    def there(self, ids: Collection[str]) -> set[str]:
        """Which of these ids exist."""
        return {row[0] for row in self._read("job_find", ids=sorted(ids))}


def _waves(batch: Sequence[Carried], there: Collection[str]) -> Iterator[list[Carried]]:
    """The jobs whose parents are there, then those whose parents are there or came before, and so on.

    A parent has to be what it is to become before its children are placed: one that has ended keeps none waiting.
    """
    known, left = set(there), list(batch)
    while wave := [each for each in left if known.issuperset(each.job.parents)]:
        yield wave
        known.update(each.job.id for each in wave)
        left = [each for each in left if each.job.id not in known]


def _insert(tx: Session, batch: Sequence[Carried]) -> set[str]:
    """Writes those whose ids are not there; another import may have written some at this moment."""
    if not batch:
        return set()
    jobs = [each.job for each in batch]
    tx.run("queue_add", names=sorted({job.queue for job in jobs}))
    starts = graph.place(tx, jobs)
    written = tx.insert(jobs, starts)
    fresh = {job.id for job, was_written in zip(jobs, written, strict=True) if was_written}
    graph.wire(tx, jobs, starts, fresh, {})
    carried = [each for each in batch if each.job.id in fresh]
    tx.each("job_adopt", [_adopted(each) for each in carried])
    tx.each("attempt_adopt", [_attempt(attempt) for each in carried for attempt in each.attempts])
    lines = [line for each in carried for line in each.logs]
    tx.each(
        "log_adopt", [(each.job_id, each.claim, each.at, each.level, each.logger, each.message) for each in lines]
    )
    return fresh


def _adopted(each: Carried) -> Row:
    """The columns of `job_adopt`."""
    key = error_key(each.job.task, each.error or "") if each.state == State.FAILED else None
    became = (each.state, each.reason, each.attempt, each.claim)
    times = (each.created_at, each.started_at, each.finished_at)
    return (each.job.id, *became, *times, each.error, key, each.result, each.progress, each.keeps_args)


def _attempt(each: Attempt) -> Row:
    """The columns of `attempt_adopt`."""
    said = (each.outcome, each.error_type, each.error_message, each.traceback)
    return (each.job_id, each.claim, each.attempt, *said, each.started_at, each.finished_at)
