"""Looks for jobs, newest first: a page at a time, in windows, within a budget of time.

Ended jobs come in the order of their ends, as the index of their state has them; all others in the order of their
ids. Where an index holds just the jobs asked for (an error's key, a schedule, a workflow, live states with few jobs),
that one is read. What no index finds is looked for job by job, in windows that are sized by what those before took.
A page says how far it has looked, and the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from dray.backends import rows
from dray.backends.database import FIRST_ID, LAST_ID, Row, Session
from dray.backends.store import Store
from dray.instants import MILLISECOND
from dray.model.job import FINAL, LIVE, Job
from dray.model.sought import Sought
from dray.model.values import canonical_id

WINDOW = 20_000  # jobs that one statement looks at
_FIRST_WINDOW = 1_000  # on a cold disk each job may take milliseconds
_GROWTH = 4
_WINDOW_US = 25 * MILLISECOND  # that a window may take
_FEW = 10_000  # jobs that are read and sorted at once
_RUNS = 200  # workflows of a name
_LANES = 5  # indexes that are read side by side
_ROWS = 200  # jobs whose arguments are read at once


class Place(NamedTuple):
    """A place in the list: the next job comes after it. `at` is None in the order of ids."""

    at: int | None
    id: str


class Looked(NamedTuple):
    """Jobs that fit, and how far was looked for them."""

    places: list[Place]
    next: Place | None  # where to go on; None: there are no more
    looked: int  # jobs that were looked at, at least


class Page(NamedTuple):
    """As `Looked`, with the jobs."""

    jobs: list[Job]
    next: Place | None
    looked: int


class Lane(NamedTuple):
    """One stretch of an index that jobs are read from, in the order of the list."""

    statement: str
    end: str  # the statement that says where its next window ends
    of: str | None = None  # the state, key or schedule


Fits = Callable[[str, str | None], bool]  # decides by a job's task and its arguments, as they are stored


class SearchStore(Store):
    def page(
        self, sought: Sought, *, limit: int, before: Place | None, budget_us: int, fits: Fits | None = None
    ) -> Page:
        """Jobs that are sought after a place, newest first. `fits`: what the database cannot decide."""

        def look(tx: Session) -> Page:
            places, after, looked = self._look(tx, sought, limit, before, budget_us, fits)
            jobs = {job.id: job for job in _jobs(tx, [place.id for place in places])}
            return Page([jobs[place.id] for place in places], after, looked)

        return self._db.read(look)

    def places(
        self, sought: Sought, *, limit: int, before: Place | None, budget_us: int, fits: Fits | None = None
    ) -> Looked:
        """As `page`, without the jobs themselves."""
        return self._db.read(lambda tx: self._look(tx, sought, limit, before, budget_us, fits))

    def among(self, sought: Sought, ids: Sequence[str], fits: Fits | None = None) -> set[str]:
        """Those of some jobs that are sought."""

        def look(tx: Session) -> set[str]:
            found = [row[0] for row in tx.rows("search_ids", **sought.asked, ids=list(ids))]
            return set(found) if fits is None else _fitting(tx, found, fits)

        return self._db.read(look)

    def newest(self) -> tuple[str, int]:
        """The newest job's id, and the time of the database."""
        newest, now = self._read("search_newest")[0]
        return newest or FIRST_ID, now

    def _look(
        self, tx: Session, sought: Sought, limit: int, before: Place | None, budget_us: int, fits: Fits | None
    ) -> Looked:
        clock, found = self._db.clock, list[Place]()
        until = clock.steady() + budget_us
        walk = _few(tx, sought, before) or Walk(tx, sought, before, clock.steady, until)
        while walk.next is not None:
            # One more than is asked for tells whether there are more.
            places = walk.step(limit + 1 - len(found) if fits is None else _ROWS)
            if fits is not None:
                kept = _fitting(tx, [place.id for place in places], fits)
                places = [place for place in places if place.id in kept]
            found += places
            if len(found) > limit:
                return Looked(found[:limit], found[limit - 1], max(walk.looked, limit))
            if clock.steady() >= until:
                break
        return Looked(found, walk.next, max(walk.looked, len(found)))


class Few:
    """Jobs that an index holds few of: all that fit are read at once."""

    def __init__(self, places: list[Place], before: Place, looked: int) -> None:
        self.looked = looked
        self.next: Place | None = before
        self._places = [place for place in sorted(places, reverse=True) if place < before]

    def step(self, limit: int) -> list[Place]:
        """The next jobs that fit."""
        some, self._places = self._places[:limit], self._places[limit:]
        self.next = some[-1] if self._places else None
        return some


class Walk:
    """Looks through lanes, a window at a time. A window ends at the same place in all of them."""

    def __init__(
        self, tx: Session, sought: Sought, before: Place | None, steady: Callable[[], int], until: int
    ) -> None:
        self.looked = 0
        self.next: Place | None = before or _start(sought)
        self._tx, self._sought, self._steady, self._until = tx, sought, steady, until
        self._asked = sought.asked
        self._lanes = _lanes(sought)
        self._by_end = by_end(sought)
        self._size = _FIRST_WINDOW
        self._first: Place | None = None  # where the window ends that is being read
        self._is_last = False
        self._count = self._served = self._took_us = 0  # of it

    def step(self, limit: int) -> list[Place]:
        """The next jobs of a window that fit: as many as are asked for, or its last."""
        assert self.next is not None
        began = self._steady()
        if self._first is None:
            self._open(self.next)
        assert self._first is not None
        span = self._span(self.next) | ({"first_at": self._first.at} if self._by_end else {"first": self._first.id})
        lanes = [
            [
                self._place(row)
                for row in self._tx.rows(lane.statement, **self._asked, **span, of=lane.of, limit=limit)
            ]
            for lane in self._lanes
        ]
        found = list(islice(merge(*lanes, reverse=True), limit))
        self._took_us += self._steady() - began
        if len(found) == limit:
            self.next = found[-1]
            if not self._sought.args:  # these have the arguments that are stored, which may be hidden
                self._served += limit
                self.looked += limit
        else:
            self._close()
        return found

    def _open(self, before: Place) -> None:
        """Finds the end of the next window: the nearest of the lanes' ends."""
        window = {**self._span(before), "window": self._size}
        ends = [self._tx.rows(lane.end, **window, of=lane.of)[0] for lane in self._lanes]
        self._count = sum(count for count, _ in ends)
        further = [end for count, end in ends if count == self._size]
        self._is_last = not further
        if self._by_end:
            at = max([self._sought.asked["since"], *further])
            self._is_last = self._is_last or at == self._sought.asked["since"]
            self._first = Place(at, FIRST_ID)
        else:
            self._first = Place(None, max(further, default=FIRST_ID))

    def _close(self) -> None:
        """The window has been read. The next is sized by what it took, and by the time that is left."""
        assert self._first is not None
        at = self._first.at
        # Not the same moment once more: more jobs may have ended at it than a window has.
        self.next = None if self._is_last else self._first if at is None else Place(at - 1, LAST_ID)
        self.looked += max(0, self._count - self._served)
        left_us = max(0, min(_WINDOW_US, self._until - self._steady()))
        in_time = self._size * left_us // max(1, self._took_us)
        self._size = max(_FIRST_WINDOW, min(WINDOW, in_time, _GROWTH * self._size))
        self._first = None
        self._served = self._took_us = 0

    def _span(self, before: Place) -> dict[str, Any]:
        return {"before": before.id, "before_at": before.at} if self._by_end else {"before": before.id}

    def _place(self, row: Row) -> Place:
        job_id, at = row
        return Place(at if self._by_end else None, job_id)


def by_end(sought: Sought) -> bool:
    """Whether jobs come in the order of their ends: if all have ended. A schedule's come as they were made."""
    return sought.possible <= FINAL and not _schedules(sought)


def _start(sought: Sought) -> Place:
    return Place(sought.asked["until"], FIRST_ID) if by_end(sought) else Place(None, LAST_ID)


def _lanes(sought: Sought) -> list[Lane]:
    schedules = _schedules(sought)
    if schedules:
        return [Lane("search_schedule", "search_schedule_end", name) for name in schedules]
    if not by_end(sought):
        return [Lane("search_enqueued", "search_enqueued_end")]
    if sought.asked["error_key"] and len(sought.asked["error_key"]) <= _LANES:
        return [Lane("search_key", "search_key_end", key) for key in dict.fromkeys(sought.asked["error_key"])]
    return [Lane("search_ended", "search_ended_end", state) for state in sorted(sought.possible)]


def _schedules(sought: Sought) -> list[str]:
    """The schedules whose jobs are sought, if they are few."""
    names: list[str] = sorted(set(sought.asked["schedule"] or ()))
    return names if len(names) <= _LANES and not sought.asked["schedule_like"] else []


def _few(tx: Session, sought: Sought, before: Place | None) -> Few | None:
    """The jobs, where an index holds few that can be meant; None: they have to be looked for."""
    if not sought.possible:
        return Few([], _start(sought), 0)
    chosen = _chosen(tx, sought)
    if chosen is None:
        return None
    statement, given = chosen
    ended = by_end(sought)
    places = [Place(at if ended else None, job_id) for job_id, at in tx.rows(statement, **sought.asked, **given)]
    looked = len(places)
    if sought.args:  # how many have such arguments stored is not told: they may be hidden
        looked = len(tx.rows(statement, **{**sought.asked, "args_has": None}, **given))
    return Few(places, before or _start(sought), looked)


def _chosen(tx: Session, sought: Sought) -> tuple[str, dict[str, Any]] | None:
    whole = [part for part in sought.asked["id_part"] or () if canonical_id(part)]
    if sought.asked["id_part"] and len(whole) == len(sought.asked["id_part"]):
        return "search_ids", {"ids": whole}
    if sought.asked["workflow"] and not (sought.asked["workflow_like"] or sought.asked["workflow_part"]):
        runs = [each for each in sought.asked["workflow"] if canonical_id(each)]
        runs += [row[0] for row in tx.rows("search_runs_named", names=sought.asked["workflow"], limit=_RUNS + 1)]
        if len(runs) <= _RUNS and tx.rows("search_runs_count", ids=runs, limit=_FEW + 1)[0][0] <= _FEW:
            return "search_runs", {"ids": runs}
    if sought.possible <= LIVE:
        states = {state.value: int(state in sought.possible) for state in LIVE}
        if tx.rows("search_live_count", **states, limit=_FEW + 1)[0][0] <= _FEW:
            return "search_live", states
    return None


def _jobs(tx: Session, ids: list[str]) -> list[Job]:
    return [rows.job(row) for row in tx.rows("job_get", ids=ids)] if ids else []


def _fitting(tx: Session, ids: list[str], fits: Fits) -> set[str]:
    found = tx.rows("search_args", ids=ids) if ids else []
    return {job_id for job_id, task, args in found if fits(task, args)}
