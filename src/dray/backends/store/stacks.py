"""Where running bodies are: somebody asks in a row, the worker that runs the body answers in it.

Nothing here is durable or needed: an answer that a power loss forgets is asked for again.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.backends.database import Database


class Asked(NamedTuple):
    """A question to a worker: where the body of this claim is."""

    id: str
    job_id: str
    claim: int


def ask(db: Database, stack_id: str, job_id: str, claim: int) -> bool:
    given = {"stack_id": stack_id, "id": job_id, "claim": claim}
    return db.write(lambda tx: tx.run("stack_ask", **given), durable=False) > 0


def read(db: Database, stack_id: str) -> str | None:
    found = db.glance("stack_read", id=stack_id)
    return found[0][0] if found else None


def answer(db: Database, worker_id: str, stack_id: str, stack: str) -> bool:
    given = {"id": stack_id, "worker_id": worker_id, "stack": stack}
    return db.write(lambda tx: tx.run("stack_answer", **given), durable=False) > 0


def drop(db: Database, stack_id: str) -> None:
    db.write(lambda tx: tx.run("stack_drop", id=stack_id), durable=False)


def prune(db: Database, before: int, limit: int) -> int:
    return db.write(lambda tx: tx.run("stack_prune", before=before, limit=limit), durable=False)
