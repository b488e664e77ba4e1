"""Where running bodies are, for `dray why`: asked for in a row, into which the worker that runs the body writes it.

No stack is durable or needed: one that a power loss forgets is asked for again.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.backends.store import Store
from dray.model.bounds import PRUNE_CHUNK


class Asked(NamedTuple):
    """A request to a worker for the stack of the body of this claim."""

    id: str
    job_id: str
    claim: int


class StackStore(Store):
    def ask(self, stack_id: str, job_id: str, claim: int) -> bool:
        """Asks the worker that runs a job for the stack of its body; `announce` the queue, so that it looks. False:
        the job does not run under this claim."""
        given = {"stack_id": stack_id, "id": job_id, "claim": claim}
        return self._db.write(lambda tx: tx.run("stack_ask", **given), durable=False) > 0

    def read(self, stack_id: str) -> str | None:
        """The stack, empty if the body has not begun or is over; None: the worker has not written it yet."""
        found = self._db.glance("stack_read", id=stack_id)
        return found[0][0] if found else None

    def answer(self, worker_id: str, stack_id: str, stack: str) -> bool:
        """Writes the stack that `work.look` asked for. False: the request was dropped."""
        given = {"id": stack_id, "worker_id": worker_id, "stack": stack}
        return self._db.write(lambda tx: tx.run("stack_answer", **given), durable=False) > 0

    def drop(self, stack_id: str) -> None:
        self._db.write(lambda tx: tx.run("stack_drop", id=stack_id), durable=False)

    def prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Removes at most `limit` requests from before an instant that were never dropped."""
        return self._db.write(lambda tx: tx.run("stack_prune", before=before, limit=limit), durable=False)
