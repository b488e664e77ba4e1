"""Whether one database can be moved into another now, how far such a move is, and what was moved. Writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from marshal import dumps
from typing import Any, NamedTuple

from dray import backends
from dray.backends.migrate import command, latest
from dray.backends.store.transfer import MOVE, MOVED_FROM, Census, InUse, Mark
from dray.errors import ConfigError, MoveError, SchemaMissing, SchemaTooNew, StorageUnavailable
from dray.wording import counted

_MODULUS = 1 << 64


class Side(NamedTuple):
    """A database and its address as it may be shown."""

    backend: backends.Backend
    place: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a move would do, or goes on with."""

    source: Side
    target: Side
    census: Census  # of the source
    mark: Mark | None  # of a move into the target that was cut off
    is_left: bool  # the source is closed: nothing in it changes any more
    is_done: bool  # all of it was done before
    force: bool
    obstacle: str | None = None  # who has to leave before the move


def plan(source: Side, target: Side, *, force: bool = False, only_look: bool = False) -> Plan:
    """Looks at both sides. The error says why they cannot be used, and what to do.

    With `only_look` workers on one of them are an obstacle, not an error.
    """
    _check_version(source)
    note = _note(source)
    if "source" in note:
        raise MoveError(f"{source.place}: is itself being filled from {note['source']}; let that move end first")
    has_tables = target.backend.schema_version() is not None
    if has_tables:
        _check_version(target)
    if source.backend.db.identity() == target.backend.db.identity():
        raise ConfigError(f"{source.place} and {target.place} are the same database; name another one to move to")
    facts = target.backend.transfer.facts() if has_tables else {}
    theirs = _note(target) if has_tables else {}
    if "target" in theirs:
        raise MoveError(f"{target.place}: has moved to {theirs['target']}; move into another database")
    mark = Mark.of(json.dumps(theirs)) if theirs else None
    is_done = bool(note) and json.loads(facts.get(MOVED_FROM, "{}")).get("id") == note["id"]
    found = Plan(source, target, source.backend.transfer.census(), mark, bool(note), is_done, force)
    if is_done:
        return found
    _check_marks(found, note)
    is_fresh = has_tables and mark is None
    if is_fresh:
        _check_empty(target)
    try:
        check_source(found, source.backend.transfer.in_use())
        if is_fresh:
            check_target(target, target.backend.transfer.in_use())
    except MoveError as error:
        if only_look:
            return replace(found, obstacle=str(error))
        raise
    return found


def _check_version(side: Side) -> None:
    version, known = side.backend.schema_version(), latest("sqlite")
    if side.backend.db.identity() is None:
        raise StorageUnavailable(
            f"{side.place}: there is no such file; nothing was moved. Name the file of the queue"
        )
    if version is None:
        raise SchemaMissing(
            f"{side.place}: there are no tables of Dray's in it; nothing was moved. Name the file of the queue"
        )
    if version < known:
        raise SchemaMissing(
            f"{side.place}: its tables are at version {version}, this Dray needs {known}; run "
            f"{command('migrate', side.place)}"
        )
    if version > known:
        raise SchemaTooNew(
            f"{side.place}: its tables are at version {version}, this Dray knows {known}; upgrade Dray here"
        )


def _note(side: Side) -> dict[str, Any]:
    """What a side says of a move that it is or was part of."""
    return json.loads(side.backend.transfer.facts().get(MOVE, "{}"))


def _check_marks(found: Plan, note: dict[str, Any]) -> None:
    if found.mark is not None and found.mark.source != found.source.place:
        raise MoveError(
            f"{found.target.place}: is being filled from {found.mark.source}; end that move, or take it back with "
            f"`dray db move {found.mark.source} TARGET --abandon`"
        )
    if note and (found.mark is None or note["id"] != found.mark.id):
        advice = "there is nothing left to move" if found.mark is None else "take this move back with --abandon"
        raise MoveError(f"{found.source.place}: has moved to {note['target']}; {advice}")


def check_left(found: Plan, mark: Mark) -> None:
    """Refuses to open a target whose source is not closed for it."""
    if _note(found.source).get("id") != mark.id:
        raise MoveError(f"{found.source.place}: is not closed for this move any more; take it back with --abandon")


def check_source(found: Plan, in_use: InUse) -> None:
    """Refuses a database with live workers, or with running jobs that no worker has taken back."""
    if in_use.alive:
        raise MoveError(
            f"{found.source.place}: {counted(len(in_use.alive), 'worker is', 'workers are')} still at work on it "
            f"({', '.join(in_use.alive[:3])}); stop all workers first"
        )
    if in_use.unknown:
        raise MoveError(
            f"{found.source.place}: {counted(len(in_use.unknown), 'worker is', 'workers are')} of another boot, "
            f"and may be at work ({', '.join(in_use.unknown[:3])}); start a worker there for a minute, which takes "
            "back what was lost, and stop it"
        )
    if in_use.running and not found.force:
        raise MoveError(
            f"{found.source.place}: {counted(in_use.running, 'job is', 'jobs are')} running in the hands of workers "
            "that are gone; start a worker, it takes them back, or carry them as they are with --force"
        )


def _check_empty(target: Side) -> None:
    rows = target.backend.transfer.census().rows
    there = [counted(rows[f"{name}s"], name) for name in ("job", "schedule", "workflow") if rows[f"{name}s"]]
    if there:
        raise MoveError(f"{target.place}: is not empty ({', '.join(there)}); move into an empty database or schema")


def check_target(target: Side, in_use: InUse) -> None:
    if in_use.alive or in_use.unknown:
        raise MoveError(f"{target.place}: has workers at work; stop them until the move is done")


class Tally(NamedTuple):
    """How many rows, and the sum of their checksums: the same in whatever order and portions they are read."""

    rows: int
    checksum: int

    @staticmethod
    def total(parts: Iterable[Tally]) -> Tally:
        found = list(parts)
        return Tally(sum(each.rows for each in found), sum(each.checksum for each in found) % _MODULUS)


def tally(rows: Sequence[tuple[Any, ...]]) -> Tally:
    # Not repr(), which takes five times as long. In its second version marshal has no references between values, so
    # that equal rows have equal bytes.
    sums = [int.from_bytes(blake2b(dumps(row, 2), digest_size=8).digest(), "big") for row in rows]
    return Tally(len(rows), sum(sums) % _MODULUS)


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move carried, or would."""

    source: str
    target: str
    is_done: bool
    rows: dict[str, int]  # by table
    states: dict[str, int]  # jobs, as they were carried
    checksums: dict[str, str] = field(default_factory=dict[str, str])  # of the rows as both sides have them
    taken_back: int = 0  # jobs that were running
    seconds: float = 0.0


def as_planned(plan: Plan) -> Moved:
    return Moved(plan.source.place, plan.target.place, plan.is_done, plan.census.rows, plan.census.states)
