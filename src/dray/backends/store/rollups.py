"""Rollups: what ended in each minute and hour (`model/rollup.py`), and what has ended since.

`maintenance/rollups.py` makes them. The mark, a row of dray_meta, is the instant before which all minutes are made,
and all hours that were over then. It moves with the rows, in one transaction. What ended after it is read from the
jobs: a bounded number of the newest, which stand for the others of their time.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from dray.backends.database import Row, Session
from dray.backends.store import Store
from dray.instants import HOUR, MINUTE
from dray.model.job import FINAL
from dray.model.rollup import (
    ALL,
    LENGTHS,
    THRESHOLDS,
    Counts,
    Part,
    Span,
    Tallies,
    Tally,
    add_up,
    floor,
    larger,
    with_sums,
    without_sums,
)

MARK = "rollups"  # in dray_meta
_SAMPLE = 1_000  # of the newest jobs of each outcome, in a stretch that is not rolled up
_COUNTED = 200_000  # where a count of such jobs ends
_ROWS = 50_000  # rows of rollups in one look at all queues or tasks
_AT_ONCE = 24  # minutes or hours that are read by one statement then
_OUTCOMES = sorted(FINAL)

Kind: TypeAlias = Literal["queue", "task"]
_OF_EACH: dict[Kind, str] = {"queue": "rollup_queues", "task": "rollup_tasks"}


class Ended(NamedTuple):
    """What ended in a stretch of time."""

    tallies: Tallies
    jobs: int
    unkeyed: int  # failed, without an error key
    keyed: int  # with one, although they did not fail


class Recorded(NamedTuple):
    """What is known of one part at one time."""

    at: int
    part: Part
    jobs: int
    waited: Counts
    ran: Counts
    share: float = 1.0  # what each of these jobs counts: it may stand for others, which were not read


class RollupStore(Store):
    def mark(self) -> int | None:
        """The instant before which everything is rolled up; None: nothing is."""
        return self._db.read(_mark)

    def next_end(self, since: int, until: int) -> int | None:
        """When the first job ended in a stretch of time."""
        return self._read("rollup_next", since=since, until=until)[0][0]

    def ended(self, since: int, until: int) -> Ended:
        """Counts what ended in a stretch of time. Reads all of it: a minute, in its use."""
        tallies = defaultdict[Part, Tally](Tally)
        odd = Counter[bool]()
        jobs = 0
        for queue, task, outcome, waited, ran, count, is_odd in self._read("rollup_ended", since=since, until=until):
            tally = tallies[Part(queue, task, outcome)]
            tally.jobs += count
            for counts, place in ((tally.waited, waited), (tally.ran, ran)):
                if place is not None:
                    counts[str(place)] += count
            odd[outcome == "failed"] += int(is_odd)
            jobs += count
        return Ended(dict(tallies), jobs, unkeyed=odd[True], keyed=odd[False])

    def write(self, minutes: Mapping[int, Tallies], hours: Iterable[int], mark: int | None) -> bool:
        """Writes what ended in these minutes, then makes these hours of their minutes, and moves the mark.

        What is there already stays where it counts more jobs. Returns whether any minute has changed."""
        # Before the transaction: reading all minutes of an hour takes longer than others should wait.
        made = {at: self._hour(at, minutes) for at in sorted(hours)}

        def work(tx: Session) -> bool:
            # The mark first: who has its row has the others wait, and the sums are of all that is there.
            if mark is None:
                tx.rows("rollup_lock", name=MARK)
            else:
                tx.run("meta_set", name=MARK, value=str(mark))
            changed = [_put(tx, "minute", at, minutes[at]) for at in sorted(minutes)]
            for at, tallies in made.items():
                _put(tx, "hour", at, tallies)
            return any(changed)

        return self._db.write(work, durable=False)

    def _hour(self, at: int, minutes: Mapping[int, Tallies]) -> Tallies:
        """An hour, of the minutes that are there and those that are about to be written."""
        found = self._db.read(lambda tx: _listed(tx, "minute", at, at + HOUR))
        new = {minute: tallies for minute, tallies in minutes.items() if floor(minute, HOUR) == at}
        whole = [larger(found.get(minute, {}), new.get(minute, {})) for minute in {*found, *new}]
        return add_up(pair for tallies in whole for pair in tallies.items())

    def prune(self, span: Span, before: int, most_us: int) -> bool:
        """Removes rows from before an instant, at most those of the oldest stretch of this length. Returns whether
        there may be more."""
        oldest = self._read("rollup_oldest", span=span)[0][0]
        if oldest is None or oldest >= before:
            return False
        until = min(before, oldest + most_us)
        self._db.write(lambda tx: tx.run("rollup_prune", span=span, until=until), durable=False)
        return until < before

    def one(self, span: Span, since: int, queue: str | None, task: str | None) -> list[Recorded]:
        """What is known of a queue, a task, both, or everything since an instant: in rows of this span, in minutes
        since the last whole hour, and as it is in the jobs."""
        name = {"queue": queue or ALL, "task": task or ALL}

        def work(tx: Session) -> list[Recorded]:
            mark = _mark(tx) or 0
            found = [
                recorded
                for each, ats in _places(span, since, mark)
                for recorded in _recorded(tx.rows("rollup_one", span=each, ats=ats, **name))
            ]
            return found + [
                each
                for each in _newest(tx, max(since, mark))
                if queue in {None, each.part.queue} and task in {None, each.part.task}
            ]

        return self._db.read(work)

    def each(self, kind: Kind, span: Span, since: int) -> list[Recorded]:
        """What is known of each queue, or of each task, in several reads. Of more than 50,000 rows the newest are
        read."""
        statement = _OF_EACH[kind]

        def newest(tx: Session) -> tuple[int, list[Recorded]]:
            mark = _mark(tx) or 0
            return mark, _newest(tx, max(since, mark))

        mark, found = self._db.read(newest)
        for each, ats in reversed(_places(span, since, mark)):
            for some in _newest_first(ats, _AT_ONCE):
                if len(found) < _ROWS:
                    found += _recorded(self._read(statement, span=each, ats=some, all=ALL, limit=_ROWS))
        return found

    def minutes(self, kind: Kind, since: int, until: int) -> list[Recorded]:
        """What is known of each queue, or of each task, in whole minutes before the mark: exact, and never twice. Of
        more than 50,000 rows the newest are read."""
        found: list[Recorded] = []
        for ats in _newest_first(list(range(floor(since, MINUTE), until, MINUTE)), _AT_ONCE):
            if len(found) < _ROWS:
                found += _recorded(self._read(_OF_EACH[kind], span="minute", ats=ats, all=ALL, limit=_ROWS))
        return found


def _mark(tx: Session) -> int | None:
    found = dict(tx.rows("meta_list")).get(MARK)
    return None if found is None else int(found)


def _places(span: Span, since: int, mark: int) -> list[tuple[Span, list[int]]]:
    """Where the rows of a stretch of time are: the hours that are whole, and the minutes after them."""
    if span == "minute":
        return [("minute", list(range(floor(since, MINUTE), mark, MINUTE)))]
    whole = max(floor(mark, HOUR), since)
    return [
        ("hour", list(range(floor(since, HOUR), whole, HOUR))),
        ("minute", list(range(whole, mark, MINUTE))),
    ]


def _newest_first(ats: list[int], length: int) -> list[list[int]]:
    """Parts of a list, the last first."""
    return [ats[max(0, end - length) : end] for end in range(len(ats), 0, -length)]


def _recorded(rows: list[Row]) -> list[Recorded]:
    """Rows as they are read. Their counts are parsed all at once, which takes half the time."""
    waited = json.loads(f"[{','.join(row[5] for row in rows)}]")
    ran = json.loads(f"[{','.join(row[6] for row in rows)}]")
    return [Recorded(row[0], Part(*row[1:4]), row[4], waited[place], ran[place]) for place, row in enumerate(rows)]


def _listed(tx: Session, span: Span, since: int, until: int) -> dict[int, Tallies]:
    """The parts that are known of a stretch of time, without their sums, by minute or hour."""
    found = defaultdict[int, defaultdict[Part, Tally]](lambda: defaultdict(Tally))
    for row in _recorded(tx.rows("rollup_list", span=span, since=since, until=until)):
        found[row.at][row.part].add(row.jobs, row.waited, row.ran)
    return {at: without_sums(tallies) for at, tallies in found.items()}


def _put(tx: Session, span: Span, at: int, tallies: Tallies) -> bool:
    """Writes what is more than there was, with the sums. Returns whether that was anything."""
    old = _listed(tx, span, at, at + LENGTHS[span]).get(at, {})
    new = larger(old, tallies)
    if new == old:
        return False
    # In the order of the key: two that write the same rows must not wait for each other.
    rows = [
        (span, at, *part, tally.jobs, _text(tally.waited), _text(tally.ran))
        for part, tally in sorted(with_sums(new).items())
    ]
    tx.each("rollup_put", rows)
    return True


def _text(counts: Counts) -> str:
    return json.dumps(dict(sorted(counts.items())), separators=(",", ":"))


def _newest(tx: Session, since: int) -> list[Recorded]:
    """What has ended since an instant, by minute. The last two minutes are looked at by themselves: the newest jobs
    of a stretch stand for all of it."""
    now = tx.rows("live_now")[0][0]
    minute = floor(now, MINUTE)
    bounds = sorted({since, max(since, minute - MINUTE), max(since, minute), max(since, now + MINUTE)})
    found: list[Recorded] = []
    for begin, end in pairwise(bounds):
        stretch = {"since": begin, "until": end}
        asked = [(state, tx.later("rollup_newest", state=state, **stretch, limit=_SAMPLE)) for state in _OUTCOMES]
        for state, rows in [(state, rows()) for state, rows in asked]:
            share = 1.0
            if len(rows) == _SAMPLE:
                share = tx.rows("rollup_count", state=state, **stretch, limit=_COUNTED)[0][0] / _SAMPLE
            found += _sampled(state, rows, share)
    return found


def _sampled(outcome: str, rows: list[Row], share: float) -> list[Recorded]:
    """Jobs by minute and part, each of which stands for as many as `share` says."""
    tallies = defaultdict[tuple[int, Part], Tally](Tally)
    for queue, task, finished_at, waited_us, ran_us in rows:
        at = floor(finished_at, MINUTE)
        tally = tallies[at, Part(queue, task, outcome)]
        tally.jobs += 1
        for counts, us in ((tally.waited, waited_us), (tally.ran, ran_us)):
            if us is not None:
                counts[str(bisect_right(THRESHOLDS, us))] += 1
    return [Recorded(at, part, tally.jobs, tally.waited, tally.ran, share) for (at, part), tally in tallies.items()]
