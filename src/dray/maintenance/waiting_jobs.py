"""Duties that move waiting jobs on: those that are due, those whose parents ended, those that nothing would free."""

from __future__ import annotations

from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.jobs import Upcoming
from dray.instants import SECOND
from dray.log import log
from dray.maintenance.duty_runner import Agenda, jittered
from dray.model.bounds import FANOUT_CHUNK, PROMOTE_CHUNK
from dray.model.settlement import Rng
from dray.wording import counted, listed, short_id

_LONGEST = 2.0  # seconds: the wall clock may be set while the promoter waits
_SHORTEST = 0.001
_FANNER_PAUSE = 2.0
_RECONCILER_PAUSE, _RECONCILER_SOON = 60.0, 0.05
_PARKED_PAUSE = 2.0  # while code of an earlier release leaves jobs with keys among those without
_SHOWN = 10


@dataclass
class Promoter:
    """Queues jobs that are due and cancels those not started in time. Workers that claim do so on the way."""

    name = "promote"
    is_exclusive = True

    _backend: Backend
    _agenda: Agenda
    _seen: Upcoming | None = None

    def tick(self) -> float:
        self._seen = upcoming = self._agenda.after(self._seen)
        done = 0
        if upcoming.due_us is not None and upcoming.due_us <= 0:
            queues = self._backend.jobs.promote(PROMOTE_CHUNK)
            self._backend.announce(queues)
            done = max(done, len(queues))
        if upcoming.expires_us is not None and upcoming.expires_us <= 0:
            expired = self._backend.jobs.expire(PROMOTE_CHUNK)
            if expired:
                self._backend.announce_done()
            done = max(done, len(expired))
        if done:
            self._agenda.forget()
            return _SHORTEST  # there may be more, and when the next is due has yet to be seen
        # Overdue and not done: another transaction has locked the rows.
        nearest_us = min((us for us in upcoming[:2] if us is not None and us > 0), default=_LONGEST * SECOND)
        return min(max(nearest_us / SECOND, _SHORTEST), _LONGEST)


@dataclass
class Fanner:
    """Frees or cancels the children of ended jobs where the worker that ended them was cut off before it could."""

    name = "fan-out"
    is_exclusive = True

    _backend: Backend
    _rng: Rng
    _agenda: Agenda
    _seen: Upcoming | None = None

    def tick(self) -> float:
        self._seen = self._agenda.after(self._seen)
        if not self._seen.has_fanout:
            return jittered(_FANNER_PAUSE, self._rng)
        step = self._backend.graph.fan_out()
        # Left and nothing done: another transaction has locked the rows.
        return 0.0 if step.left and step.decided else jittered(_FANNER_PAUSE, self._rng)


@dataclass
class Reconciler:
    """Repairs waiting jobs that nothing would ever free: there should be none, and each is a defect. Parks jobs with
    keys that code of an earlier release has queued: where there are limits nothing would claim them as they stand."""

    name = "reconcile"
    is_exclusive = True

    _backend: Backend
    _rng: Rng

    def tick(self) -> float:
        found = self._backend.graph.reconcile()
        for ids, what in (
            (found.parents, "ended without telling the children"),
            (found.children, "waited for the wrong number of parents"),
        ):
            if ids:
                log.error(
                    "%s %s; repaired. This is a defect in Dray: please report it. %s",
                    counted(len(ids), "job"),
                    what,
                    listed([short_id(job_id) for job_id in ids], _SHOWN),
                )
        parked = len(self._backend.limits.park(PROMOTE_CHUNK))
        if max(len(found.parents), len(found.children)) >= FANOUT_CHUNK or parked >= PROMOTE_CHUNK:
            return jittered(_RECONCILER_SOON, self._rng)
        return jittered(_PARKED_PAUSE if parked else _RECONCILER_PAUSE, self._rng)
