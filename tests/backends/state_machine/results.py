"""The results of a verb on the model and on the databases, made comparable, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

from dray.backends import Backend
from dray.backends.store.jobs import Drawing, Node
from dray.errors import DrayError
from dray.model.job import Attempt, Job
from dray.model.schedule import Schedule
from tests import verbs
from tests.backends.reference import Reference


@dataclass
class Raised:
    """A result that was an error: its type is compared, its text is each database's own."""

    kind: str
    words: str = field(compare=False)


def answer_of(
    side: Backend | Reference,
    verb: str,
    given: tuple[Any, ...],
    named: dict[str, Any],
    order: Callable[[Any], Any] | None,
) -> Any:
    try:
        answer = _verb(side, verb)(*given, **named)
    except DrayError as error:
        return Raised(type(error).__name__, str(error))
    return order(answer) if order is not None else answer


def _verb(side: Backend | Reference, verb: str) -> Callable[..., Any]:
    noun, _, name = verb.partition(".")
    if isinstance(side, Reference):
        return getattr(side, f"{noun}_{name}")
    return partial(getattr(verbs, name), side) if noun == "verbs" else attrgetter(verb)(side)


def differences(theirs: Any, ours: Any) -> list[tuple[Any, Any]]:
    """Returns the differences, as small as possible: rows by key, columns by name."""
    if theirs == ours:
        return []
    if is_dataclass(theirs) and type(theirs) is type(ours):
        theirs, ours = vars_of(theirs), vars_of(ours)
        keys = [name for name in ours if theirs[name] != ours[name]]
        return [({name: theirs[name] for name in keys}, {name: ours[name] for name in keys})]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*theirs, *ours}, key=str)
        return [((key, left), right) for key in keys for left, right in differences(theirs.get(key), ours.get(key))]
    return [(theirs, ours)]


def vars_of(row: Any) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in fields(row)}


def settled(answer: Any) -> tuple[list[str], ...]:
    return tuple(sorted(ids) for ids in answer)


def exchanged(answer: Any) -> tuple[Any, ...]:
    return settled(answer.settled), sorted(answer.promoted), answer.claims


def by_name(schedules: list[Schedule]) -> list[Schedule]:
    return sorted(schedules, key=lambda schedule: schedule.name)


def wordless(row: Any) -> Any:
    """Removes the database's own message about a refused outcome: it is not compared."""
    if isinstance(row, list):
        return [wordless(each) for each in cast("list[Any]", row)]
    if isinstance(row, Drawing):
        return row._replace(nodes=wordless(row.nodes))
    if isinstance(row, Node) and (row.error or "").startswith("Unstorable"):
        return row._replace(error="Unstorable")
    if isinstance(row, Attempt) and row.error_type == "Unstorable":
        return replace(row, error_message="")
    if isinstance(row, Job) and (row.error or "").startswith("Unstorable"):
        return replace(row, error="Unstorable")
    return row


def fair(limit: int, keys: Iterable[int]) -> int:
    """Returns a limit that does not fall between equal rows: their order is undefined."""
    ordered = sorted(keys)
    while limit < len(ordered) and ordered[limit - 1] == ordered[limit]:
        limit += 1
    return limit
