"""Workflows: looking at them, and steps that a running step adds to its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dray.backends import rows
from dray.backends.database import Database, Row, Session
from dray.backends.errors import DataRefused
from dray.backends.store import graph, jobs, work
from dray.model.new_job import NewJob
from dray.model.settlement import Settled, Settlement, unstorable
from dray.model.workflow import Workflow

Counts = dict[str, int]


class Node(NamedTuple):
    """One step, as a drawing needs it."""

    id: str
    step: str | None
    task: str
    state: str
    reason: str | None


def get(db: Database, workflow_id: str) -> tuple[Workflow, Counts] | None:
    def look(tx: Session) -> tuple[Workflow, Counts] | None:
        found = tx.rows("workflow_get", id=workflow_id)
        if not found:
            return None
        return rows.workflow(found[0]), dict(tx.rows("workflow_counts", id=workflow_id))

    return db.read(look)


def list_workflows(db: Database, limit: int, before: str) -> list[Workflow]:
    return [rows.workflow(r) for r in db.read(lambda tx: tx.rows("workflow_list", limit=limit, before=before))]


def tallies(db: Database, ids: Sequence[str]) -> dict[str, Counts]:
    counts: dict[str, Counts] = {workflow_id: {} for workflow_id in ids}
    for workflow_id, state, n in db.read(lambda tx: tx.rows("workflow_tallies", ids=list(ids))):
        counts[workflow_id][state] = n
    return counts


def find(db: Database, part: str, limit: int) -> list[str]:
    if not jobs.is_part_of_id(part):
        return []
    found = db.read(lambda tx: tx.rows("workflow_find_part", pattern=f"%{part}%", limit=limit))
    return [row[0] for row in found]


def job_ids(db: Database, workflow_id: str, states: frozenset[str]) -> list[str]:
    found = db.read(lambda tx: tx.rows("workflow_jobs", id=workflow_id, states=sorted(states)))
    return [row[0] for row in found]


def step(db: Database, workflow_id: str, name: str) -> str | None:
    found = db.read(lambda tx: tx.rows("workflow_step", id=workflow_id, step=name))
    return found[0][0] if found else None


def drawing(db: Database, workflow_id: str) -> tuple[list[Node], list[tuple[str, str]]]:
    def look(tx: Session) -> tuple[list[Node], list[tuple[str, str]]]:
        nodes = [Node(*row) for row in tx.rows("workflow_nodes", id=workflow_id)]
        return nodes, [(parent, child) for parent, child in tx.rows("workflow_edges", id=workflow_id)]

    return db.read(look)


def moved_by(db: Database, workflow_id: str, limit: int) -> list[str]:
    return [row[0] for row in db.read(lambda tx: tx.rows("workflow_moved_by", id=workflow_id, limit=limit))]


# Growth


def grow(
    db: Database, worker_id: str, settlement: Settlement, new: Sequence[NewJob], *, durable: bool = False
) -> Settled:
    """Ends one attempt and writes the steps it has added; neither without the other."""

    def settle(tx: Session) -> tuple[list[Row], bool]:
        written = tx.settle(work.settle_rows(db, worker_id, [settlement]))()
        work.trim_attempts(tx, [settlement])
        if not written:
            return [], False
        tx.run("queue_add", names=sorted({job.queue for job in new}))
        ends_some = add_steps(tx, settlement.id, new)
        return written, ends_some or written[0][2]

    try:
        written, has_children = db.write(settle, durable=durable)
    except DataRefused as error:
        return work.exchange(
            db, worker_id, [unstorable(settlement, str(error))], work.NOTHING, durable=durable
        ).settled
    if has_children:
        graph.fan_out_all(db, to_end=True)
    return work.judge(db, worker_id, [settlement], written, [])


def add_steps(tx: Session, job_id: str, new: Sequence[NewJob]) -> bool:
    """Writes the steps that a job has added, in the transaction that ends it, once it has ended there.

    Somebody who cancelled the workflow meanwhile meant them too. True: they were cancelled, which is to be passed on.
    """
    if not new:
        return False
    jobs.insert(tx, new)
    if not tx.rows("cancel_requested", id=job_id):
        return False
    ids = [job.id for job in new]
    tx.rows("job_cancel", ids=ids)
    tx.run("fanout_mark", ids=ids)
    return True
