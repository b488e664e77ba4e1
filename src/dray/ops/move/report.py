"""What was moved, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from marshal import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dray.ops.move.plan import Plan

_MODULUS = 1 << 64


class Tally(NamedTuple):
    """How many rows, and the sum of their checksums: the same in whatever order and portions they are read."""

    rows: int = 0
    checksum: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, (self.checksum + other.checksum) % _MODULUS)


def tally(rows: Sequence[tuple[Any, ...]]) -> Tally:
    # Not repr(), which takes five times as long. In its second version marshal has no references between values, so
    # that equal rows have equal bytes.
    sums = [int.from_bytes(blake2b(dumps(row, 2), digest_size=8).digest(), "big") for row in rows]
    return Tally(len(rows), sum(sums) % _MODULUS)


@dataclass(frozen=True, slots=True)
class TableMoved:
    """One table: the same in both databases."""

    table: str
    rows: int
    checksum: str | None  # of the rows as both sides have them; None: nothing was carried yet


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move carried, or would."""

    source: str
    target: str
    is_done: bool
    tables: tuple[TableMoved, ...]
    states: dict[str, int]  # jobs, as they were carried
    taken_back: int  # of those that were running
    seconds: float


def as_planned(plan: Plan) -> Moved:
    """What a move would carry."""
    tables = tuple(TableMoved(name, rows, None) for name, rows in plan.census.rows.items())
    return Moved(plan.source.place, plan.target.place, plan.is_done, tables, plan.census.states, 0, 0.0)
