"""What shows that a worker is alive: its id, proof of life and row, its lease, and the heartbeat that renews it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dray.backends import Backend
from dray.backends.database import Proof
from dray.backends.watch import Watch
from dray.clock import Clock, Ids
from dray.errors import StorageError, StorageLocked
from dray.instants import SECOND
from dray.log import log
from dray.model.worker import Beat, NewWorker, WorkerState
from dray.runtime import outcome
from dray.runtime.condition import LockPatience, Obstacle, Outage
from dray.runtime.execution import Execution
from dray.runtime.in_flight import InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.service import Service

if TYPE_CHECKING:
    from dray.backends.store.stacks import Asked
    from dray.runtime.stopper import Stopper


LEASE, POOLER_LEASE = 15 * SECOND, 60 * SECOND
_MARGIN = 3 * SECOND  # before the lease ends, for bodies to stop
_LAST_MOMENT = SECOND  # before the lease ends, by which bodies are made to stop
_LOOK = SECOND // 3  # between two looks at a beat that is late
_AGAIN = 0.5  # seconds after a beat that failed


@dataclass(eq=False)
class WorkerLease:
    """How long this worker's lease holds, and when its bodies must stop because of that.

    Behind a lease there is a proof that the kernel or the server holds for as long as this process lives. While that
    stands, a missed beat means nothing. Without it (a PostgreSQL that cannot be reached) other workers cannot tell
    this one from a dead one once the lease is over, so its bodies are stopped a little before.

    The properties are for any thread.
    """

    worker_id: str
    proof: Proof
    _clock: Clock
    duration_us: int
    beat_began: int | None = None  # the beat that is on its way; the heartbeat sets it
    _seen: int | None = None  # the beat that was on its way at the last look
    _has_stopped_bodies: bool = False
    _is_away: bool = False  # the database was, at the last beat

    def __post_init__(self) -> None:
        self._trusted_until = self._clock.steady() + self.duration_us
        self._outage = Outage("renew its lease")

    def renewed(self, worker_id: str, proof: Proof) -> None:
        """The worker has come back under a new id."""
        self.proof = proof  # before the id: a beat under the new id must not check the old proof, which is closed
        self.worker_id = worker_id
        self._trusted_until = self._clock.steady() + self.duration_us

    @property
    def period_us(self) -> int:
        """From one beat to the next."""
        return self.duration_us // 3

    @property
    def obstacle(self) -> Obstacle:
        """The last beat that got through. There always is one; it only matters if it was long ago."""
        return Obstacle(self._trusted_until - self.duration_us, self._outage.reason)

    def beat_succeeded(self, began: int) -> None:
        self._outage.ends()
        self._has_stopped_bodies = self._is_away = False
        self._trusted_until = began + self.duration_us

    def beat_failed(self, error: StorageError, stop_bodies: Callable[[int], None]) -> None:
        now = self._clock.steady()
        self._outage.goes_on(error, now)
        self._is_away = not isinstance(error, StorageLocked)
        if not self.proof.is_held or (self._is_away and not self.proof.is_certain):
            self._stop_if_due(now, stop_bodies)

    def watch_over(self, now: int, stop_bodies: Callable[[int], None]) -> int:
        """Stops the bodies in time though a beat hangs in a silent network; returns when to look again.

        On the stopper's thread. A beat must be seen hanging twice, unless the one before has failed: a process
        that was stopped, or kept from running by a body, gets its beat through first.
        """
        if self.proof.is_certain:
            return now + self.duration_us
        if now < self._stops_at:
            return self._stops_at
        if self._is_away or (self.beat_began is not None and self.beat_began == self._seen):
            self._stop_if_due(now, stop_bodies)
        self._seen = self.beat_began
        return now + _LOOK

    @property
    def _stops_at(self) -> int:
        return self._trusted_until - min(_MARGIN, self.duration_us // 5)

    def _stop_if_due(self, now: int, stop_bodies: Callable[[int], None]) -> None:
        """Soon this worker looks like a dead one: what it runs must not run beside its successor."""
        if now >= self._stops_at and not self._has_stopped_bodies:
            self._has_stopped_bodies = True
            stop_bodies(self._trusted_until - _LAST_MOMENT)


@dataclass(eq=False)
class Heartbeat(Service):
    """Renews the lease three times as often as it would end, on a thread and a connection of its own."""

    name = "dray-heartbeat"
    _backend: Backend
    lease: WorkerLease
    _inbox: Inbox
    _in_flight: InFlight
    _stopper: Stopper
    _clock: Clock
    _trouble: Callable[[], str | None]  # what keeps the worker from working
    _watch: Watch

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state: str = WorkerState.ACTIVE
        self.stacks = Stacks(self._in_flight.executions, self.wake)

    def drain(self) -> None:
        """Shows in the worker's row that it is stopping."""
        self.state = WorkerState.DRAINING
        self.wake()

    def beat(self, backend: Backend, worker_id: str, *, durable: bool = False) -> Beat:
        """Renews the lease through any connection."""
        lease_us, trouble = self.lease.duration_us, self._trouble()
        return backend.workers.beat(worker_id, lease_us, self.state, trouble=trouble, durable=durable)

    def tick(self) -> float:
        lease, flight = self.lease, self._in_flight
        began, worker_id, proof = self._clock.steady(), lease.worker_id, lease.proof
        is_durable, flight.has_written = flight.has_written, False
        lease.beat_began = began
        self._watch.expect_own()
        try:
            beat = self.beat(self._backend, worker_id, durable=is_durable)
        except StorageError as error:
            flight.has_written |= is_durable
            return self._fail(error)
        finally:
            lease.beat_began = None
        lease.beat_succeeded(began)
        # After the beat, which nothing may hold up: the lease is renewed, whatever has become of the proof.
        self._inbox.hear(worker_id, beat, is_proven=proof.check(), is_idle=flight.is_empty)
        if self.stacks.answer_one(self._backend, worker_id):
            return 0.0
        return max(0.05, (lease.period_us - (self._clock.steady() - began)) / SECOND)

    def _fail(self, error: StorageError) -> float:
        if not self.lease.proof.is_held:
            self._inbox.cut_off()
        self.lease.beat_failed(error, self._stopper.cut_off)
        return min(_AGAIN, self.lease.duration_us / 10 / SECOND)


@dataclass(eq=False)
class Identity:
    """Who a worker is: its id, its proof of life and its row. After it was declared dead it gets new ones.

    The proof is held from the start; the row is there when `register` has returned.
    """

    _backend: Backend
    _watch: Watch
    _clock: Clock
    _ids: Ids
    _worker: NewWorker  # its row but for the id and the lock
    _asked_lease_us: int | None

    def __post_init__(self) -> None:
        self._prove()
        # Without a proof of life (behind a pooler) only the lease shows that a worker lives, so it is longer.
        self.lease_us = self._asked_lease_us or (LEASE if self.proof.is_held else POOLER_LEASE)

    def _prove(self) -> None:
        self.id = self._ids.new()
        self.proof: Proof = self._backend.proofs.prove(self.id, self._watch)

    def lock_fd(self) -> int | None:
        """The descriptor of the lock that proves this worker alive. A child holds it while it has a job."""
        return self.proof.fileno()

    def register(self) -> None:
        self._backend.workers.register(replace(self._worker, id=self.id, lock=self.proof.lock), self.lease_us)

    def register_patiently(
        self, is_over: Callable[[], bool], patience: LockPatience, declare: Callable[[], None]
    ) -> None:
        """Declares the limits of the code, then registers. Retries while other connections keep the database, or a
        running job, locked."""
        outage = Outage("start")
        while not is_over():
            began = time.monotonic()
            try:
                declare()
                self.register()
            except StorageLocked as error:  # after a wait of its own
                outage.goes_on(error, self._clock.steady())
                patience.check(is_locked=True, waited=time.monotonic() - began)
            else:
                outage.ends()
                return

    def renew(self) -> None:
        """Takes another id, another proof and another row."""
        self.deregister()
        self.proof.close()
        self._prove()
        self.register()

    def deregister(self) -> None:
        self._backend.workers.deregister(self.id)


@dataclass(eq=False)
class Stacks:
    """Tells `dray why` where a body is. The question comes through the database.

    The engine reads questions together with cancels. The heartbeat's thread replies to one of them a beat: a child
    process may take a quarter of a second to show its stack, and neither outcomes nor the lease should wait long. So
    `hear` is for the engine's thread, all else for the heartbeat's.
    """

    _executions: Callable[[], Iterable[Execution]]
    _wake: Callable[[], None]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Asked] = {}

    def hear(self, asked: Iterable[Asked]) -> None:
        """Takes in the questions of a look, which shows each again until the reply is written."""
        with self._lock:
            new = {each.id: each for each in asked if each.id not in self._asked}
            self._asked |= new
        if new:
            self._wake()

    def answer_one(self, backend: Backend, worker_id: str) -> bool:
        """Replies to the oldest question, if there is one. Returns whether there are more.

        A question is kept until the reply is written: until then looks show it again.
        """
        with self._lock:
            asked = next(iter(self._asked.values()), None)
        if asked is None:
            return False
        try:
            known = (each for each in self._executions() if (each.claim.id, each.claim.claim) == asked[1:])
            stack = next((each.runner.stack(each) for each in known), None)
            if backend.stacks.answer(worker_id, asked.id, outcome.shown_stack(stack or "")):
                backend.announce_done()
        except StorageError as error:
            log.debug("the stack of a body could not be written: %s", error)  # the next look asks again
        finally:
            with self._lock:
                del self._asked[asked.id]
        return bool(self._asked)
