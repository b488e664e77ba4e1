"""The move itself: rows are carried while the source is in use, then what has changed since, then it changes hands.

1. The target is closed: no worker can start on half of it.
2. All tables are carried as they are at one moment, a portion a transaction, and each portion is read back and
   compared. Enqueues at the source go on; what they add is carried by another round, until there is little left.
3. The source is closed: from here on an enqueue there raises, and says where to go.
4. What has changed since is found by reading the source once more, and carried.
5. Both sides are counted, and the target is opened. Jobs that arrived as running are taken back there.

Cut off at any point, the next run goes on: it compares what is there and carries the rest. So the same few steps
serve a first run, a resumed one and the last round.

Two moves of one source into two targets may run at once: the source is closed for one of them, and only that one
opens its target. The other's can only be emptied.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from dray.backends.database import DataRefused, Row
from dray.backends.store.transfer import GIVEN_UP, MOVE, MOVED_FROM, TABLES, Mark, Repair
from dray.backends.tables import Key, Portion, Shape, Table, Tables
from dray.clock import Ids, SystemClock
from dray.errors import MoveError
from dray.instants import SECOND
from dray.model.action import By, NewAction
from dray.ops.move_plan import Moved, Plan, Side, Tally, as_planned, check_left, check_source, check_target, tally
from dray.wording import counted

_LITTLE = 10_000  # rows that may be left when the source is closed: seconds
_ROUNDS = 5  # before that; a source that outruns us is closed anyway


class Progress(NamedTuple):
    table: str
    done: int  # rows of all tables looked at in this round
    total: int  # that the source had when it began
    is_left: bool  # the source is closed


class Stretch(NamedTuple):
    """Rows between two keys that were the same on both sides when they were last compared."""

    after: Key
    upto: Key
    tally: Tally | None  # None: not compared yet


Tell = Callable[[Progress], None]


def carry(plan: Plan, *, portion: Portion | None = None, tell: Tell = lambda _: None, by: By | None = None) -> Moved:
    """Moves, or goes on moving; what was carried. An error leaves the target closed, for another run. `by`: who does
    it, for the row in the target that says so."""
    if plan.is_done:
        return as_planned(plan)
    clock = SystemClock()
    began = clock.steady()
    mark = _begun(plan, Ids(clock).new())
    carrier = _Carrier(plan, mark, portion or Portion(), tell)
    if not plan.is_left:
        for _ in range(_ROUNDS):
            carrier.round()
            if carrier.behind() <= _LITTLE:
                break
        note = json.dumps({"id": mark.id, "target": plan.target.place})
        sentence = f"this queue has moved to {plan.target.place}; use that address"
        plan.source.backend.transfer.leave(note, sentence, lambda in_use: check_source(plan, in_use))
    carrier.is_left = True
    carrier.round()
    totals = carrier.totals()
    rows = {name: each.rows for name, each in totals.items()}
    # The databases' own counts have to say the same on both sides as the rows that were compared.
    theirs, ours = (side.backend.transfer.census() for side in (plan.source, plan.target))
    if theirs != ours or theirs.rows != rows:
        raise MoveError(
            f"{plan.target.place} and {plan.source.place} do not have the same numbers of rows, or of jobs in each "
            "state; the target stays closed: run the move again, or take it back with --abandon"
        )
    check_left(plan, mark)
    note = json.dumps({"id": mark.id, "source": plan.source.place})
    rolled_up, jobs = plan.source.backend.rollups.mark(), sum(theirs.states.values())
    oldest_code = int(plan.source.backend.transfer.facts()["oldest_code"])
    action = by and _action(plan, by)
    plan.target.backend.transfer.finish(carrier.mark, note, rolled_up, action, jobs, oldest_code=oldest_code)
    # What arrived as running is taken back: its workers are unknown in the target. Workers there do the same if this
    # process gets no further.
    rng, taken_back = random.Random(), 0  # noqa: S311 - apart from each other
    while rescued := plan.target.backend.workers.rescue([], rng=rng):
        taken_back += len(rescued)
    return Moved(
        plan.source.place,
        plan.target.place,
        is_done=True,
        rows=rows,
        checksums={name: f"{each.checksum:016x}" for name, each in totals.items()},
        states=theirs.states,
        taken_back=taken_back,
        seconds=(clock.steady() - began) / SECOND,
    )


def _begun(plan: Plan, mover: str) -> Mark:
    """The target, closed and in our hands."""
    target, transfer = plan.target, plan.target.backend.transfer
    if plan.mark is not None:
        taken = replace(plan.mark, mover=mover)
        transfer.take_over(plan.mark, taken)
        return taken
    if target.backend.schema_version() is None:
        target.backend.migrate()
    mark = Mark(mover, plan.source.place, mover)
    sentence = (
        f"is being filled by `dray db move` from {plan.source.place}; nothing can be enqueued or run here until that "
        "is done (if it was cut off, run it again)"
    )
    transfer.begin(mark, sentence, lambda in_use: check_target(target, in_use))
    return mark


def _action(plan: Plan, by: By) -> NewAction:
    new_id = Ids(SystemClock()).new()
    return NewAction(new_id, by.who, by.via, "move", "database", plan.target.place, note=f"from {plan.source.place}")


class _Carrier:
    """Makes the target what the source is, table by table."""

    def __init__(self, plan: Plan, mark: Mark, portion: Portion, tell: Tell) -> None:
        self.mark = mark
        self.is_left = plan.is_left
        self._plan = plan
        self._source = plan.source.backend.transfer
        self._target = plan.target.backend.transfer
        self._portion = portion
        self._tell = tell
        self._total = sum(plan.census.rows.values())
        self._done = 0
        self._compared = {table.name: [Stretch(table.lowest, table.highest, None)] for table in TABLES}

    def round(self) -> None:
        """Makes the target what the source is at this moment."""

        def carry_all(theirs: Tables) -> None:
            for table in TABLES:
                shape = Shape(table, self._columns(theirs, table))
                self._compared[table.name] = list(self._stretches(theirs, shape))

        self._done = 0
        self._source.reading(carry_all)

    def behind(self) -> int:
        """About how many rows the source has that were not carried yet."""
        there = self._source.census().rows
        return sum(there.values()) - sum(each.rows for each in self.totals().values())

    def totals(self) -> dict[str, Tally]:
        return {
            name: Tally.total(each.tally for each in stretches if each.tally is not None)
            for name, stretches in self._compared.items()
        }

    def _columns(self, theirs: Tables, table: Table) -> tuple[str, ...]:
        columns = theirs.columns(table)
        if set(self._target.reading(lambda ours: ours.columns(table))) != set(columns):
            raise MoveError(
                f"the columns of dray_{table.name} are not the same in {self._plan.source.place} and "
                f"{self._plan.target.place}; run `dray db migrate` on both"
            )
        return columns

    def _stretches(self, theirs: Tables, shape: Shape) -> Iterator[Stretch]:
        for stretch in self._compared[shape.table.name]:
            before = stretch.tally
            if before is not None and before == _tallied(theirs, shape, *stretch[:2], self._portion):
                self._step(shape, before.rows)
                yield stretch
            else:
                yield from self._carried(theirs, shape, stretch)

    def _step(self, shape: Shape, rows: int) -> None:
        self._done += rows
        self._tell(Progress(shape.table.name, self._done, self._total, self.is_left))

    def _carried(self, theirs: Tables, shape: Shape, stretch: Stretch) -> Iterator[Stretch]:
        after = stretch.after
        with closing(theirs.read(shape, stretch.after, stretch.upto, self._portion)) as portions:
            for rows in portions:
                upto = shape.key_of(rows[-1])
                yield self._same(shape, after, upto, rows)
                after = upto
        if after < stretch.upto:
            yield self._same(shape, after, stretch.upto, [])  # nothing may be there that has gone from the source

    def _same(self, shape: Shape, after: Key, upto: Key, rows: list[Row]) -> Stretch:
        """A stretch of the target, made what these rows of the source are."""
        wanted = tally(rows)
        if rows and after >= self._reached(shape):
            self._write(shape, upto, Repair(rows, (), ()))
        last: Tally | None = None

        def stored(ours: Tables) -> Tally:
            return _tallied(ours, shape, after, upto, self._portion)

        while (found := self._target.reading(stored)) != wanted:
            repair = self._repair(shape, after, upto, rows)
            if found == last:
                raise self._refusal(shape, repair)
            last = found
            self._write(shape, upto, repair)
        self._step(shape, len(rows))
        return Stretch(after, upto, wanted)

    def _repair(self, shape: Shape, after: Key, upto: Key, rows: list[Row]) -> Repair:
        """What a stretch lacks. Surplus rows come in portions, because all of the source may have been pruned."""
        wanted = {shape.key_of(row): row for row in rows}
        different: list[Row] = []
        surplus: list[Key] = []

        def compare(ours: Tables) -> Repair:
            with closing(ours.read(shape, after, upto, self._portion)) as portions:
                for row in chain.from_iterable(portions):
                    key = shape.key_of(row)
                    meant = wanted.pop(key, None)
                    if meant is None:
                        surplus.append(key)
                    elif repr(meant) != repr(row):
                        different.append(meant)
                    if len(surplus) >= self._portion.rows:
                        return Repair((), different, surplus)
            return Repair(list(wanted.values()), different, surplus)

        return self._target.reading(compare)

    def _write(self, shape: Shape, upto: Key, repair: Repair) -> None:
        reached = max(
            self._reached(shape), shape.key_of(repair.missing[-1]) if repair.missing else shape.table.lowest
        )
        mark = replace(self.mark, reached={**self.mark.reached, shape.table.name: reached})
        try:
            self._target.mend(self.mark, mark, shape, repair)
        except DataRefused as error:
            raise MoveError(
                f"a row of dray_{shape.table.name} up to {_shown(upto)} cannot be stored in the target: {error}"
            ) from error
        self.mark = mark

    def _reached(self, shape: Shape) -> Key:
        return self.mark.reached.get(shape.table.name, shape.table.lowest)

    def _refusal(self, shape: Shape, repair: Repair) -> MoveError:
        rows = [*repair.missing, *repair.different]
        keys = [*map(shape.key_of, rows), *repair.surplus]
        of = f"of dray_{shape.table.name}"
        rows_are = counted(len(keys), f"row {of} is not stored as it is", f"rows {of} are not stored as they are")
        return MoveError(
            f"{self._plan.target.place}: {rows_are} in "
            f"{self._plan.source.place}, {_shown(min(keys))} and after; it stays closed. "
            "Run the move again, or take it back with --abandon"
        )


def _tallied(tables: Tables, shape: Shape, after: Key, upto: Key, portion: Portion) -> Tally:
    with closing(tables.read(shape, after, upto, portion)) as portions:
        return Tally.total(map(tally, portions))


def _shown(key: Key) -> str:
    return "/".join(map(str, key))


def abandon(source: Side, target: Side, *, force: bool = False) -> str | None:
    """Takes an unfinished move back; the address of another target that the source is closed for, and stays so.

    The target first: while it has rows the source must not go on as if it alone had them. Only the move that closed
    the source opens it, and only where the target says that it was taken back; `force` is for a target that is lost.
    """
    facts = target.backend.transfer.facts() if target.backend.schema_version() is not None else {}
    found = json.loads(facts.get(MOVE, "{}"))
    is_ours = found.get("source") == source.place
    if is_ours:
        target.backend.transfer.give_up(Mark.of(facts[MOVE]))
    # Not before: a move that went on until then may have closed it.
    text = source.backend.transfer.facts().get(MOVE, "{}")
    note = json.loads(text)
    if "target" in note and note["id"] == (found["id"] if is_ours else facts.get(GIVEN_UP)):
        source.backend.transfer.come_back(text)
        return None
    if is_ours:
        return note.get("target")
    if note.get("target") != target.place:
        raise MoveError(
            f"there is no move from {source.place} to {target.place} to be taken back; name both as the move did"
        )
    if json.loads(facts.get(MOVED_FROM, "{}")).get("id") == note["id"]:
        raise MoveError(
            f"{source.place} has moved to {target.place}, which is in use now: it cannot be taken back; "
            "move the other way instead"
        )
    if not force:
        raise MoveError(
            f"{target.place} knows nothing of the move that closed {source.place}; if what was there is lost, open "
            "the source with --abandon --force: jobs that ran there run again"
        )
    source.backend.transfer.come_back(text)
    return None
