"""The heartbeat: renews the worker's lease on a thread and a connection of its own.

Behind a lease there is a proof that the kernel or the server holds for as long as this process lives. While that
stands, a missed beat means nothing. Without it (a PostgreSQL that cannot be reached) nobody can tell this worker
from a dead one once the lease is over, so its bodies are stopped a little before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dray.errors import StorageError, StorageLocked
from dray.instants import SECOND
from dray.model.worker import Beat, WorkerState
from dray.runtime.service import Service

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.backends.proof import Proof
    from dray.clock import Clock
    from dray.runtime.engine import Engine

log = logging.getLogger("dray")

_MARGIN = 3 * SECOND  # before the lease ends, for bodies to stop in
_LONG_LOCK = 10 * SECOND  # a lock that others hold one after the other is no outage
_AGAIN = 0.5  # seconds after a beat that failed


class Heartbeat(Service):
    """Beats three times a lease."""

    def __init__(self, engine: Engine, backend: Backend, proof: Proof, clock: Clock, lease_us: int) -> None:
        super().__init__("dray-heartbeat")
        self.state: str = WorkerState.ACTIVE
        self.proof = proof
        self._engine = engine
        self._backend = backend
        self._clock = clock
        self._lease_us = lease_us
        self._trusted_until = clock.steady() + lease_us
        self._has_failed = False
        self._has_stopped_bodies = False
        self._failing_since = 0

    def renewed(self, proof: Proof) -> None:
        """The worker has come back under a new id."""
        self.proof = proof
        self._trusted_until = self._clock.steady() + self._lease_us

    def tick(self) -> float:
        began, worker_id, proof = self._clock.steady(), self._engine.worker_id, self.proof
        is_durable, self._engine.has_written = self._engine.has_written, False
        try:
            is_ours = proof.check()
            beat = self._backend.worker_beat(worker_id, self._lease_us, self.state, durable=is_durable)
        except StorageError as error:
            self._engine.has_written |= is_durable
            return self._fail(error)
        if self._has_failed:
            log.info("worker %s beats again", worker_id)
        self._has_failed = self._has_stopped_bodies = False
        self._failing_since = 0
        self._trusted_until = began + self._lease_us
        if worker_id == self._engine.worker_id:
            self._engine.hear(beat if is_ours else Beat(alive=False, held=[]))
        period = self._lease_us / 3 / SECOND
        return max(0.05, period - (self._clock.steady() - began) / SECOND)

    def _fail(self, error: StorageError) -> float:
        now = self._clock.steady()
        if not self._failing_since:
            self._failing_since = now
        if not self._has_failed and (not isinstance(error, StorageLocked) or now - self._failing_since > _LONG_LOCK):
            log.warning("worker %s cannot renew its lease: %s; trying again", self._engine.worker_id, error)
            self._has_failed = True
        if not self.proof.is_held:
            is_late = now >= self._trusted_until - min(_MARGIN, self._lease_us // 5)
            self._engine.cut_off(stop_bodies=is_late and not self._has_stopped_bodies)
            self._has_stopped_bodies |= is_late
        return min(_AGAIN, self._lease_us / 10 / SECOND)
