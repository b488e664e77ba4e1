"""Failed jobs by group: those of one key failed alike (`model/error_group.py`). Keys are written with the failure."""

from __future__ import annotations

from typing import NamedTuple

from dray.backends.database import Session
from dray.backends.store import Store
from dray.model.error_group import error_key

_KEYS = 1_000  # groups that are looked at
_NEWEST = 5_000  # failures that are looked at for their groups, where there are more groups than that


class Chart(NamedTuple):
    """Stretches of time that failures are counted by."""

    since: int
    step_us: int


class FailureGroup(NamedTuple):
    key: str
    task: str
    error: str  # of the newest
    newest_id: str
    first_at: int
    last_at: int
    jobs: int  # since an instant, counted up to a limit
    is_capped: bool  # there are more
    steps: dict[int, int]  # how many of them are in which step of the chart


class FailureStore(Store):
    def groups(self, since: int, chart: Chart, *, limit: int, most: int, in_all: int) -> list[FailureGroup]:
        """The groups with the newest failures since an instant, newest first. In each no more than `most` are
        counted, and no more than its share of `in_all`. Where there are more than 1,000 groups: those of the newest
        5,000 failures."""

        def work(tx: Session) -> list[FailureGroup]:
            found = tx.rows("failure_keys", limit=_KEYS)
            if len(found) == _KEYS:
                found = tx.rows("failure_newest_keys", limit=_NEWEST)
            newest = sorted(((at, key) for key, at in found if at is not None and at >= since), reverse=True)
            keys = [key for _, key in newest[:limit]]
            return _groups(tx, keys, since, chart, min(most, in_all // max(1, len(keys))))

        return self._db.read(work)

    def group(self, key: str, since: int, chart: Chart, *, most: int) -> FailureGroup | None:
        """None: no job has this key."""
        return next(iter(self._db.read(lambda tx: _groups(tx, [key], since, chart, most))), None)

    def give_keys(self, since: int, until: int, limit: int) -> int | None:
        """Gives keys to jobs that failed in a stretch of time and have none, at most `limit` of them. Returns from
        which instant on there may be more; None: there are no more."""
        found = self._read("failure_unkeyed", since=since, until=until, limit=limit)
        given = [(job_id, claim, error_key(task, error or "")) for job_id, claim, task, error, _ in found]
        if given:
            self._db.write(lambda tx: tx.each("failure_key_set", given), durable=False)
        return found[-1][-1] if len(found) == limit else None

    def clear_keys(self, since: int, until: int) -> int:
        """Takes the keys of jobs that ended in a stretch of time and did not fail."""
        return self._db.write(lambda tx: tx.run("failure_key_clear", since=since, until=until), durable=False)


def _groups(tx: Session, keys: list[str], since: int, chart: Chart, most: int) -> list[FailureGroup]:
    """All questions are sent before the first answer is read, which is one round trip where there is any."""
    asked = [
        (
            key,
            tx.later("failure_newest", key=key),
            tx.later("failure_first", key=key),
            tx.later("failure_counts", key=key, since=since, chart=chart.since, step=chart.step_us, limit=most + 1),
        )
        for key in keys
    ]
    found: list[FailureGroup] = []
    for key, newest, first, counts in asked:
        row, first_at, steps = newest(), first()[0][0], dict(counts())
        if row:
            job_id, task, error, last_at = row[0]
            jobs = sum(steps.values())
            count, is_capped = min(jobs, most), jobs > most
            found.append(FailureGroup(key, task, error or "", job_id, first_at, last_at, count, is_capped, steps))
    return found
