"""Does a worker's share of the duties: what is everybody's always, the others while it has their leases.

A worker has two runners, each with a thread: one for rescue, which no other duty may keep waiting, and one for all
the rest. A lease has no clock: it is free as soon as its holder is dead, so the leases are looked at right after a
burial. Looking is a read; only a duty that is free is taken, which is a write. A database that is away is said once,
by one of the two, and waited for, with longer and longer pauses.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dray.errors import StorageError, StorageLocked
from dray.instants import SECOND
from dray.maintenance.duty import Duty, jittered
from dray.maintenance.rescuer import Rescuer

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.clock import Clock, Rng

log = logging.getLogger("dray")

_LOOK = 2.0  # seconds between two looks at the leases
_SLACK_US = SECOND // 4  # what is due so soon is done at once: waking up costs more than most of what is done then
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_LOCKED_TRIES = 4  # with the waits between them about 10 seconds


@dataclass(slots=True)
class _Part:
    """Something with a time of its own."""

    name: str
    work: Callable[[], float]
    due_at: int = 0
    failures: int = 0
    is_said: bool = False  # that it failed
    is_poked: bool = False


class DutyRunner:
    """Ticks duties of one worker. One thread ticks; the other verbs may come from another.

    `beside`: the worker's other runner, which may have said already that the database is away.
    """

    def __init__(
        self,
        backend: Backend,
        worker_id: str,
        duties: Sequence[Duty],
        clock: Clock,
        rng: Rng | None = None,
        *,
        beside: DutyRunner | None = None,
    ) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads work, hides nothing
        self._rescuers = [duty for duty in duties if isinstance(duty, Rescuer)]
        self._always = [_Part(duty.name, duty.tick) for duty in duties if not duty.is_exclusive]
        self._leases = _Part("leases", self._look)
        self._exclusive = [_Part(duty.name, duty.tick) for duty in duties if duty.is_exclusive]
        self._terms: dict[str, int] = {}
        self.beside = beside
        if beside is not None:
            beside.beside = self

    @property
    def is_failing(self) -> bool:
        """Whether anything is to be tried again."""
        return any(part.failures for part in (*self._always, self._leases, *self._exclusive))

    @property
    def held(self) -> frozenset[str]:
        """The duties that this worker has at the moment, as far as it knows."""
        return frozenset(self._terms)

    def tick(self) -> float:
        """Does what is due, each thing once; seconds until there is more."""
        for part in self._always:
            if not self._run(part):
                return self._rest()
        if self._exclusive and not self._run(self._leases):
            return self._rest()
        for part in self._exclusive:
            if part.name in self._terms and not self._run(part):
                break
        return self._rest()

    def poke(self, duty: str) -> None:
        """There is something to do for a duty: the next tick does it, if it is this worker's."""
        for part in (*self._always, *self._exclusive):
            if part.name == duty:
                part.is_poked = True

    def look_for_duties(self) -> None:
        """A worker was buried: the next tick takes the duties it had."""
        self._leases.is_poked = True

    def rename(self, worker_id: str) -> None:
        """The worker came back under a new id; what it had under the old one is free."""
        self._worker_id = worker_id
        for rescuer in self._rescuers:
            rescuer.worker_id = worker_id
        self._terms = {}
        self._leases.due_at = 0

    def resign(self) -> None:
        """Gives all duties back, so that others need not wait for this worker's end."""
        terms, self._terms = self._terms, {}
        for duty, term in terms.items():
            self._backend.leases.resign(duty, self._worker_id, term)

    # Running parts

    def _run(self, part: _Part) -> bool:
        """Runs what is due of a part. False: the database is away; there is no use in going on now."""
        if self._clock.steady() + _SLACK_US < part.due_at and not part.is_poked:
            return True
        part.is_poked = False  # before the work, which may not see what happens meanwhile
        try:
            pause = part.work()
        except StorageError as error:
            self._complain(part, error)
            return False
        except Exception:
            # A defect in one duty must not end the others.
            log.exception("the duty %s failed; going on with the others", part.name)
            self._back_off(part)
            return True
        if part.is_said:
            log.info("the duty %s goes on", part.name)
        part.failures, part.is_said = 0, False
        part.due_at = self._clock.steady() + int(pause * SECOND)
        return True

    def _complain(self, part: _Part, error: StorageError) -> None:
        is_known = self.is_failing or (self.beside is not None and self.beside.is_failing)
        if isinstance(error, StorageLocked):
            # A lock that others hold one after the other is no outage.
            is_known = part.failures != _LOCKED_TRIES
        part.is_said |= not is_known
        log.log(logging.DEBUG if is_known else logging.WARNING, "the duty %s: %s; trying again", part.name, error)
        self._back_off(part)

    def _back_off(self, part: _Part) -> None:
        pause = min(_SHORTEST_BACKOFF * 2 ** min(part.failures, 10), _LONGEST_BACKOFF)
        part.failures += 1
        part.due_at = self._clock.steady() + int(jittered(pause, self._rng) * SECOND)

    def _rest(self) -> float:
        mine = [part for part in self._exclusive if part.name in self._terms]
        parts = (*self._always, *([self._leases] if self._exclusive else ()), *mine)
        if any(part.is_poked for part in parts):
            return 0.0
        due_at = min(part.due_at for part in parts)
        return max(0, due_at - self._clock.steady()) / SECOND

    # Leases

    def _look(self) -> float:
        """Finds out which duties this worker still has, and takes those that are free."""
        worker_id = self._worker_id
        held = {lease.duty: lease for lease in self._backend.leases.held()}
        terms = {duty: lease.term for duty, lease in held.items() if lease.holder == worker_id}
        for part in self._exclusive:
            if part.name not in held:
                term = self._backend.leases.take(part.name, worker_id)
                if term is not None:
                    terms[part.name] = term
                    part.due_at = 0
        if worker_id == self._worker_id:  # else it was renamed meanwhile: those are a dead worker's
            self._terms = terms
        return jittered(_LOOK, self._rng)
