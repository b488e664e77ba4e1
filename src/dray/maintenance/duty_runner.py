"""Duties: periodic work that any worker may do, and the runner that does a worker's share of them.

A worker does an exclusive duty while it has the lease of that duty, all others always. It has two runners, each with
a thread: one for rescue, which no other duty may keep waiting, and one for all the rest. A lease has no
clock: it is free as soon as its holder is dead, so a runner looks at the leases right after a burial. A look is a
read; only taking a duty that is free is a write. When the database is away, one of the two runners logs it once, and
both retry with longer and longer pauses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dray.backends import Backend
from dray.backends.store.jobs import Upcoming
from dray.clock import Clock
from dray.errors import StorageError, StorageLocked
from dray.instants import MILLISECOND, SECOND
from dray.log import log
from dray.model.settlement import Rng

_LOOK = 2.0  # seconds between two looks at the leases
_SLACK_US = SECOND  # what is due within this is done at once: a wake-up costs more than most duties
_FRESH_US = 2 * MILLISECOND  # how old a reading may be that several duties share
_SHORTEST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_LOCKED_TRIES = 4  # with the waits between them about 10 seconds


class Duty(Protocol):
    """Something that has to be done over and over. Safe to do twice, anywhere, at the same time."""

    name: str  # of its lease
    is_exclusive: bool  # only the worker that has its lease does it. That saves work and nothing else

    def tick(self) -> float: ...  # does one bounded step, and returns the seconds until the next


def jittered(seconds: float, rng: Rng) -> float:
    """Up to a tenth less, so that workers that were started together drift apart. Never later than promised."""
    return seconds * (1 - rng.random() / 10)


class Agenda:
    """What several duties look at before they do anything, read once for all that are ticked at the same moment."""

    def __init__(self, backend: Backend, steady: Callable[[], int] = lambda: 0) -> None:
        self._backend, self._steady = backend, steady
        self._found: Upcoming | None = None
        self._read_at = 0

    def after(self, seen: Upcoming | None) -> Upcoming:
        """A reading that is new to a duty whose last one was `seen`."""
        now = self._steady()
        if self._found is None or self._found is seen or now - self._read_at > _FRESH_US:
            self._found, self._read_at = self._backend.jobs.upcoming(), now
        return self._found

    def forget(self) -> None:
        """A duty has changed something."""
        self._found = None


@dataclass(slots=True)
class _Part:
    """A duty, or the look at the leases, with its own schedule."""

    name: str
    work: Callable[[], float]
    due_at: int = 0
    failures: int = 0
    is_logged: bool = False  # that it failed
    is_poked: bool = False


@dataclass(eq=False)
class DutyRunner:
    """Ticks duties of one worker. One thread ticks; the other methods are for any thread."""

    _backend: Backend
    _worker_id: str
    _duties: Sequence[Duty]
    _clock: Clock
    _rng: Rng
    beside: DutyRunner | None = None  # the worker's other runner, which may have logged that the database is away

    def __post_init__(self) -> None:
        self._always = [_Part(duty.name, duty.tick) for duty in self._duties if not duty.is_exclusive]
        self._leases = _Part("leases", self._look)
        self._exclusive = [_Part(duty.name, duty.tick) for duty in self._duties if duty.is_exclusive]
        self._terms: dict[str, int] = {}
        if self.beside is not None:
            self.beside.beside = self

    @property
    def is_failing(self) -> bool:
        """Whether any part failed and is to be retried."""
        return any(part.failures for part in (*self._always, self._leases, *self._exclusive))

    def tick(self) -> float:
        """Does what is due, each part once. Returns the seconds until more is due."""
        for part in self._parts():
            if not self._run(part):
                break
        parts = list(self._parts())
        if any(part.is_poked for part in parts):
            return 0.0
        due_at = min(part.due_at for part in parts)
        return max(0, due_at - self._clock.steady()) / SECOND

    def _parts(self) -> Iterator[_Part]:
        """What this worker does at the moment, in order. The look at the leases decides what follows it."""
        yield from self._always
        if self._exclusive:
            yield self._leases
        yield from (part for part in self._exclusive if part.name in self._terms)

    def poke(self, duty: str) -> None:
        """Makes a duty due: the next tick does it, if this worker has it."""
        for part in (*self._always, *self._exclusive):
            if part.name == duty:
                part.is_poked = True

    def look_for_duties(self) -> None:
        """After a burial: the next tick takes the duties of the dead worker."""
        self._leases.is_poked = True

    def rename(self, worker_id: str) -> None:
        """The worker came back under a new id. What it had under the old one is free."""
        self._worker_id = worker_id
        self._terms = {}
        self._leases.due_at = 0

    def resign(self) -> None:
        """Gives all duties back, so that other workers need not wait for this one's end."""
        terms, self._terms = self._terms, {}
        for duty, term in terms.items():
            self._backend.leases.resign(duty, self._worker_id, term)

    def _run(self, part: _Part) -> bool:
        """Runs a part if it is due. False: the database is away, and the other parts would fail too."""
        if self._clock.steady() + _SLACK_US < part.due_at and not part.is_poked:
            return True
        part.is_poked = False  # before the work, which may miss what happens meanwhile
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
        if part.is_logged:
            log.info("the duty %s goes on", part.name)
        part.failures, part.is_logged = 0, False
        part.due_at = self._clock.steady() + int(pause * SECOND)
        return True

    def _complain(self, part: _Part, error: StorageError) -> None:
        is_known = self.is_failing or (self.beside is not None and self.beside.is_failing)
        if isinstance(error, StorageLocked):
            # A lock that other transactions hold one after the other is no outage.
            is_known = part.failures != _LOCKED_TRIES
        part.is_logged |= not is_known
        log.log(logging.DEBUG if is_known else logging.WARNING, "the duty %s: %s; trying again", part.name, error)
        self._back_off(part)

    def _back_off(self, part: _Part) -> None:
        pause = min(_SHORTEST_BACKOFF * 2 ** min(part.failures, 10), _LONGEST_BACKOFF)
        part.failures += 1
        part.due_at = self._clock.steady() + int(jittered(pause, self._rng) * SECOND)

    def _look(self) -> float:
        """Reads which duties this worker still has, and takes those that are free."""
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
