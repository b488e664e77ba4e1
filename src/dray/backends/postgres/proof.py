"""Proof of life by the server: a session advisory lock on the connection that the worker listens on.

The server frees it about 3 ms after the process is gone, keeps it while the process is stopped, and frees it by TCP
keepalives when the host or the network is gone. A dropped connection frees it too, so a free lock alone is no death:
the lease has to be over as well. Behind a pooler there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.backends.database import Proof, Proofs, Session
from dray.backends.postgres.listen import PostgresWatch
from dray.backends.postgres.session import WORKER_SPACE, lock_key
from dray.backends.watch import Watch
from dray.errors import ForkedConnection
from dray.model.worker import Signs


class PostgresProof(Proof):
    """One worker's advisory lock; the watch takes it again whenever it has reconnected."""

    lock: str | None = None

    def __init__(self, worker_id: str, watch: PostgresWatch) -> None:
        self._worker_id = worker_id
        self._watch = watch
        self._closed = False
        watch.hold(worker_id)

    @property
    def is_held(self) -> bool:
        return not self._closed and self._watch.holds

    is_certain = False  # the server frees it when it can no longer see this host

    def check(self) -> bool:
        """Has a dropped lock taken again, without waiting for it. True even without one: then the lease counts."""
        if self._closed:
            return False
        try:
            self._watch.keep(self._worker_id)
        except ForkedConnection:
            return False
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch.release(self._worker_id)


class PostgresProofs(Proofs):
    """The advisory locks at one database."""

    def prove(self, worker_id: str, watch: Watch) -> PostgresProof:
        assert isinstance(watch, PostgresWatch), "a watch of another database"
        return PostgresProof(worker_id, watch)

    def suspects(self) -> bool | None:
        return None

    def witness(self, tx: Session, workers: Sequence[Signs]) -> dict[str, bool]:
        # A free lock says nothing, so only those are asked about whose lease says that they are dead, or cannot say.
        overdue = [worker.id for worker in workers if worker.left_us < 0 or worker.unseen_us < 0]
        if not overdue:
            return {}
        held = {row[0] for row in tx.rows("worker_locks", space=WORKER_SPACE)}
        return {worker_id: True for worker_id in overdue if lock_key(worker_id) & 0xFFFFFFFF in held}
