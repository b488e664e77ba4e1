"""Queues as pages list them: a bounded number, however many there are.

What all visits share (`Site.snapshot`) has at most 1,000 queues, and those in which jobs are ready or run. Where
there are more, the queues that a visitor asks for by name, or may see alone, are read by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from dray.backends.store.live import QUEUES_COUNTED
from dray.model.job import State
from dray.ops.top import COUNTED, Snapshot, queue_row
from dray.web import figures, show
from dray.web.visit import Visit

SHOWN = 200  # queues of a page
_READ = 1_000  # queues that are read by name
_KEPT = 1.0  # seconds that they are kept

# What the command line counts of a queue and pages do not: no index has the jobs of a queue in these states.
_UNCOUNTED = [state.value for state in State if state not in {State.QUEUED, State.RUNNING}]

_Rows = list[dict[str, Any]]


class QueueRows(NamedTuple):
    """Queues that a visitor may see, the fullest first; how many there are may be more."""

    rows: _Rows
    total: int

    @property
    def is_total_capped(self) -> bool:
        return self.total >= QUEUES_COUNTED


def rows(visit: Visit, span: str, part: str = "") -> QueueRows:
    """What waits and runs in queues, and what ended in the window. `part`: those that have it in their name."""
    seen, part = visit.site.snapshot(), part.lower()
    names = {queue["name"] for queue in seen.queues} | figures.rates(visit, span, "queue").keys()
    if not seen.has_all_queues:
        names |= set(_others(visit, part))
    wanted = {name for name in names if visit.access.sees(name) and part in name.lower()}
    found = sorted(_read(visit, span, wanted), key=lambda row: (-row["queued"], -row["running"], row["name"]))
    is_whole = visit.access.queues is None and not part
    return QueueRows(found, max(len(found), len(wanted) if part else 0, seen.queue_count if is_whole else 0))


def one(visit: Visit, span: str, name: str) -> dict[str, Any] | None:
    """One queue; None: it was not made, and nothing waits, runs or has ended in it."""
    return next(iter(_read(visit, span, [name])), None)


def seen_by(visit: Visit) -> Snapshot:
    """What goes on, with all queues of a visitor who may see some alone."""
    seen, queues = visit.site.snapshot(), visit.access.queues
    if queues is None or seen.has_all_queues:
        return seen
    return replace(seen, queues=_rows_of(visit, seen, queues, ()))


def _others(visit: Visit, part: str) -> Iterable[str]:
    """Names of queues that the snapshot may not have."""
    if visit.access.queues is not None:
        return visit.access.queues
    if not part:
        return ()
    return visit.site.shared.get(
        ("queues like", part), _KEPT, lambda: visit.backend.live.queues_like(part, QUEUES_COUNTED)
    )


def _read(visit: Visit, span: str, names: Collection[str]) -> _Rows:
    seen, ended = visit.site.snapshot(), figures.rates(visit, span, "queue")
    slots = sum(worker["concurrency"] for worker in seen.workers)
    return [
        {**row, "slots": slots, "depth": show.about(row["queued"], COUNTED), **figures.rated(ended.get(row["name"]))}
        for row in _rows_of(visit, seen, names, ended)
    ]


def _rows_of(visit: Visit, seen: Snapshot, names: Collection[str], ended: Collection[str]) -> _Rows:
    """What the snapshot has, and what it has not: by name, if there may be more."""
    known = {queue["name"]: queue for queue in seen.queues}
    found = [known[name] for name in names if name in known]
    missing = sorted(name for name in names if name not in known)
    if seen.has_all_queues:
        return found + [queue_row(name, None, 0) for name in missing if name in ended]
    asked = tuple(missing[:_READ])
    queues, depths = visit.site.shared.get(
        ("queues named", asked), _KEPT, lambda: visit.backend.live.queues_named(asked, COUNTED)
    )
    made = {queue.name: queue for queue in queues}
    there = [name for name in missing if name in made or depths.get(name) or name in ended]
    return found + [queue_row(name, made.get(name), depths.get(name, 0)) for name in there]


def shape(visit: Visit, row: dict[str, Any], span: str) -> dict[str, Any]:
    """A queue as JSON: as the command line has it, but for what is not counted here."""
    found = figures.rates(visit, span, "queue").get(row["name"])
    return {
        **{name: row[name] for name in ("name", "priority", "paused_at", "queued", "running", "oldest")},
        **dict.fromkeys(_UNCOUNTED),
        "limits": figures.limited(visit, "queue").get(row["name"]),
        "ended": None if found is None else figures.rates_shape(found),
    }
