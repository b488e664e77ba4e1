"""A whole database carried into another: what is carried, who still works here, and which side may be worked on.

A side that may not be worked on is closed: its tables refuse every change, by triggers, so that programs which have
been connected for hours are refused too. The target is closed from before the first row until all are there and
compared, the source from the moment after which nothing is carried any more. `move` in dray_meta says what for, and
in the target how far it is: it is written in the transaction that writes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, TypeVar

from dray.backends.database import FIRST_ID, LAST_ID, Row, Session
from dray.backends.migrate import OLDEST_CODE
from dray.backends.store import Store
from dray.backends.store.actions import ActionRow
from dray.backends.store.liveness import Evidence, liveness
from dray.backends.store.rollups import MARK as ROLLED_UP
from dray.backends.tables import Key, Shape, Table, Tables
from dray.errors import MoveError
from dray.model.action import NewAction

T = TypeVar("T")
CLOSED, MOVE, _PASS = "closed", "move", "pass"
MOVED_FROM, GIVEN_UP = "moved_from", "given_up"  # of a target: what has ended, or was taken back

_LAST_NAME, _LAST_NUMBER = "\U0010ffff", 1 << 62

# What others refer to comes first.
TABLES = (
    Table("queues", ("name",), ("",), (_LAST_NAME,)),
    Table("schedules", ("name",), ("",), (_LAST_NAME,)),
    Table(
        "limits", ("scope", "name", "kind", "source", "period_us"), ("", "", "", "", -1), (_LAST_NAME, "", "", "", 0)
    ),
    Table("starts", ("scope", "name", "key", "period_us", "at"), ("", "", "", -1, 0), (_LAST_NAME, "", "", 0, 0)),
    Table("workflows", ("id",), (FIRST_ID,), (LAST_ID,)),
    Table("jobs", ("id",), (FIRST_ID,), (LAST_ID,)),
    Table("attempts", ("job_id", "claim"), (FIRST_ID, -1), (LAST_ID, _LAST_NUMBER)),
    Table("edges", ("parent_id", "child_id"), (FIRST_ID, FIRST_ID), (LAST_ID, LAST_ID)),
    Table("logs", ("seq",), (-1,), (_LAST_NUMBER,)),
    Table("outcomes", ("job_id", "claim"), (FIRST_ID, -1), (LAST_ID, _LAST_NUMBER)),
    Table("actions", ("id",), (FIRST_ID,), (LAST_ID,)),
    Table("rollups", ("span", "at", "queue", "task", "outcome"), ("", 0, "", "", ""), (_LAST_NAME, 0, "", "", "")),
)
# Of processes that work on one database and no other; payloads are in the rows of jobs.
LEFT = ("workers", "leases", "stacks", "payloads")

_ALIVE = {Evidence.PROVEN_ALIVE, Evidence.LEASE_HOLDS}


@dataclass(frozen=True, slots=True)
class Mark:
    """What the target notes of a move into it until that is done."""

    id: str
    source: str  # fit to be shown
    mover: str  # the process that moves; another one that starts takes over
    reached: dict[str, Key] = field(default_factory=dict[str, Key])  # table -> the last key that may be here

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Mark:
        found = json.loads(text)
        return Mark(**found | {"reached": {name: tuple(key) for name, key in found["reached"].items()}})


class InUse(NamedTuple):
    """Who works on a database, and what they have in hand."""

    alive: list[str]  # workers that are proven to live, or whose lease holds
    unknown: list[str]  # of which it cannot be told from here
    running: int  # jobs


class Census(NamedTuple):
    rows: dict[str, int]  # by table
    states: dict[str, int]  # jobs by state


class Repair(NamedTuple):
    """What is to be done for a stretch of a table to be as in the source."""

    missing: Sequence[Row]
    different: Sequence[Row]
    surplus: Sequence[Key]


Allowed = Callable[[InUse], None]  # raises where the transaction must not be


class Transfer(Store):
    """One side of a move."""

    def facts(self) -> dict[str, str]:
        """What dray_meta says."""
        return dict(self._read("meta_list"))

    def in_use(self) -> InUse:
        return self._db.read(self._in_use)

    def census(self) -> Census:
        """How much there is. Reads all there is on some databases: seconds for millions of rows."""

        def work(tx: Session) -> Census:
            rows = {table.name: tx.tables.count(table) for table in TABLES}
            return Census(rows, dict(tx.rows("job_states")))

        return self._db.snapshot(work)

    def _in_use(self, tx: Session) -> InUse:
        found = {each.signs.id: each.evidence for each in liveness(self._db, tx)}
        alive = [worker_id for worker_id, evidence in found.items() if evidence in _ALIVE]
        unknown = [worker_id for worker_id, evidence in found.items() if evidence is Evidence.NONE]
        return InUse(alive, unknown, running=tx.rows("job_running")[0][0])

    def reading(self, work: Callable[[Tables], T]) -> T:
        """Runs `work` on all tables as they are at one moment, however long it takes to read them."""
        return self._db.snapshot(lambda tx: work(tx.tables))

    def begin(self, mark: Mark, sentence: str, allowed: Allowed) -> None:
        """Closes a database that is to be filled, if it has no job, and forgets its queues, limits and rollups, and
        up to when it is rolled up: the source's count."""

        def work(tx: Session) -> None:
            if self._close(tx, mark.text(), sentence, allowed):
                if tx.rows("job_states"):
                    raise MoveError("a job has been enqueued to the target meanwhile; move into an empty database")
                tx.run("meta_add", name=_PASS, value="")
                for table in TABLES:
                    if table.name in {"queues", "rollups", "limits", "starts"}:
                        tx.tables.clear(table)
                tx.run("meta_drop", name=ROLLED_UP)
                tx.run("meta_drop", name=_PASS)

        self._db.write(work, many=True)

    def take_over(self, old: Mark, new: Mark) -> None:
        """Goes on where another process was cut off; if that lives, it can write no more."""
        self._marked(old, new, lambda _: None, lambda facts: facts.get(MOVE) == new.text())

    def mend(self, old: Mark, new: Mark, shape: Shape, repair: Repair) -> None:
        """Makes rows what they have become in the source, and notes how far this is, together."""

        def work(tx: Session) -> None:
            tables = tx.tables
            if shape.table.name == "jobs":
                # Who has a lock here may have lost it in the source to one of these: its own row comes later.
                place = shape.columns.index("unique_lock")
                locks = {row[place] for row in (*repair.missing, *repair.different) if row[place] is not None}
                if locks:
                    tx.run("unique_release", locks=sorted(locks))
            if repair.surplus:
                tables.remove(shape.table, repair.surplus)
            if repair.different:
                tables.mend(shape, repair.different)
            if repair.missing:
                tables.append(shape, repair.missing)

        self._marked(old, new, work, lambda facts: facts.get(MOVE) == new.text())

    def finish(
        self,
        mark: Mark,
        note: str,
        rolled_up: int | None,
        action: NewAction | None = None,
        jobs: int = 0,
        *,
        oldest_code: int = OLDEST_CODE,
    ) -> None:
        """Opens a database that is filled, and keeps a note of where it came from. `rolled_up`: before when the
        source is; what ended after that is still to be counted. `oldest_code`: what code must know to write to the
        source; it must know as much here, where its limits are now. `action`: the move, as what a person did; its row
        is the first that the source does not have."""

        def work(tx: Session) -> None:
            tx.tables.tidy(TABLES)
            ActionRow(action).add(tx, jobs, 0)
            _open(tx)
            tx.run("meta_set", name=MOVED_FROM, value=note)
            known = int(tx.known()["oldest_code"])
            tx.run("meta_set", name="oldest_code", value=str(max(known, oldest_code)))
            if rolled_up is not None:
                tx.run("meta_set", name=ROLLED_UP, value=str(rolled_up))

        self._marked(mark, mark, work, lambda facts: facts.get(MOVED_FROM) == note)

    def clear(self) -> None:
        """Removes every job and all that belongs to jobs, as `manage.py flush` does to a test's data."""

        def work(tx: Session) -> None:
            for table in reversed(TABLES):
                tx.tables.clear(table)

        self._db.write(work, many=True)

    def give_up(self, mark: Mark) -> None:
        """Empties and opens a database that was to be filled, and keeps a note of it: that alone proves that the
        source may be opened again."""

        def work(tx: Session) -> None:
            for table in reversed(TABLES):
                tx.tables.clear(table)
            _open(tx)
            tx.run("meta_set", name=GIVEN_UP, value=mark.id)

        self._marked(mark, mark, work, lambda facts: facts.get(GIVEN_UP) == mark.id)

    def _marked(
        self, old: Mark, new: Mark, work: Callable[[Session], None], was_done: Callable[[dict[str, str]], bool]
    ) -> None:
        """Writes to the target, if no other process has gone on with the move since."""

        def marked(tx: Session) -> None:
            if not tx.run("meta_swap", name=MOVE, old=old.text(), value=new.text()):
                if was_done(dict(tx.rows("meta_list"))):
                    return  # this very transaction was committed before, and its answer lost
                raise MoveError("another `dray db move` into this database goes on instead of this one")
            tx.run("meta_add", name=_PASS, value="")
            work(tx)
            tx.run("meta_drop", name=_PASS)

        self._db.write(marked, many=True)

    def leave(self, note: str, sentence: str, allowed: Allowed) -> None:
        """Closes a database that is moved away from: nothing that is in it changes any more."""
        self._db.write(lambda tx: self._close(tx, note, sentence, allowed), many=True)

    def come_back(self, note: str) -> None:
        """Opens a database that was to be moved away from, if it was closed with this note."""

        def work(tx: Session) -> None:
            if tx.run("meta_drop_same", name=MOVE, old=note):
                _open(tx)

        self._db.write(work, many=True)

    def _close(self, tx: Session, note: str, sentence: str, allowed: Allowed) -> bool:
        """False: this very transaction was committed before, and its answer lost."""
        if not tx.run("meta_add", name=MOVE, value=note):
            found = dict(tx.rows("meta_list"))[MOVE]
            if found == note:
                return False
            target, place = json.loads(found).get("target"), self._db.place
            if target is not None:
                raise MoveError(f"{place}: has moved to {target} meanwhile; take this move back with --abandon")
            raise MoveError(f"{place}: another `dray db move` has begun to fill it; wait for its end")
        tx.run("meta_add", name=CLOSED, value=sentence)
        tx.tables.close(sentence)
        # Not before: transactions that were about to write have done so, and none can from here on.
        allowed(self._in_use(tx))
        return True


def _open(tx: Session) -> None:
    tx.tables.open()
    tx.run("meta_drop", name=CLOSED)
    tx.run("meta_drop", name=MOVE)
