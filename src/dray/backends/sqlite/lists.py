"""Lists of jobs, newest first, of a table of any size.

The order of ids is quick where what is asked for is among the newest, and slow where it is rare or long ago. So jobs
that are few by their state are read through the index of that state and sorted; those that failed, or that have
tags, through an index of their own. Others are looked for among the newest, and those of a queue or a task then in
the whole table, in the order that it lies in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.model.job import FINAL, LIVE, State

if TYPE_CHECKING:
    from dray.backends.database import Row
    from dray.backends.sqlite.session import SqliteSession

_FEW = 20_000  # rows that are read and sorted in 20 milliseconds
_NEAR = 20_000  # the newest rows, which are looked at in 10


def listed(tx: SqliteSession, fit: Mapping[str, Any], before: str, limit: int) -> list[Row]:
    """At most so many jobs before an id that fit."""
    states = {State(state) for state in fit["states"]}
    asked: dict[str, Any] = {**fit, "before": before, "limit": limit}
    chosen: dict[str, Any] = {state: state in states for state in LIVE} | {"final": sorted(states & FINAL)}
    if states != set(State) and tx.rows("list_count", **chosen, limit=_FEW + 1)[0][0] <= _FEW:
        return tx.rows("list_few", **asked, **chosen)
    if states <= {State.FAILED, State.CANCELLED}:
        return tx.rows("list_failed", **asked)
    if fit["tag"] is not None:
        return tx.rows("list_tagged", **asked)
    if all(value is None for name, value in fit.items() if name != "states"):
        return tx.rows("job_list", **asked, first="")
    near = tx.rows("list_near", before=before, limit=_NEAR)
    found = tx.rows("job_list", **asked, first=near[0][0] if near else "")
    return found if len(found) == limit or not near else tx.rows("list_far", **asked)
