"""Who a worker is: its id, its proof of life and its row. After it was declared dead it is somebody else."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dray.errors import StorageLocked
from dray.model.worker import NewWorker
from dray.runtime.outage import Outage

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.backends.proof import Proof
    from dray.backends.watch import Watch
    from dray.clock import Clock, Ids


class Identity:
    """Proven from the start; registered when `register` has returned."""

    def __init__(
        self,
        backend: Backend,
        watch: Watch,
        clock: Clock,
        ids: Ids,
        *,
        name: str,
        queues: Sequence[str],
        tasks: Sequence[str],
        concurrency: int,
    ) -> None:
        self._backend = backend
        self._watch = watch
        self._clock = clock
        self._ids = ids
        self._name = name
        self._queues = tuple(queues)
        self._tasks = tuple(tasks)
        self._concurrency = concurrency
        self.lease_us = 0
        self._prove()

    def _prove(self) -> None:
        self.id = self._ids.new()
        self.proof: Proof = self._backend.workers.prove(self.id, self._watch)

    def lock_fd(self) -> int | None:
        """The file that a child process must not keep open."""
        return self.proof.fileno()

    def register(self) -> None:
        new = NewWorker(
            id=self.id,
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot=self._clock.boot,
            lock=self.proof.lock,
            queues=self._queues,
            tasks=self._tasks,
            concurrency=self._concurrency,
        )
        self._backend.workers.register(new, self.lease_us)

    def register_patiently(self, is_over: Callable[[], bool]) -> None:
        """A file that others write to all the time is no reason not to start."""
        outage = Outage("start")
        while not is_over():
            try:
                self.register()
                return outage.ends()
            except StorageLocked as error:  # after a wait of its own
                outage.goes_on(error, self._clock.steady())
        return None

    def renew(self) -> None:
        """Another id, another proof, another row."""
        self.deregister()
        self.proof.close()
        self._prove()
        self.register()

    def deregister(self) -> None:
        self._backend.workers.deregister(self.id)

    def close(self) -> None:
        self.proof.close()
