"""Workflows, as those see them who look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dray.backends.database import Database, Session
from dray.backends.store.jobs import LAST_ID, is_part_of_id
from dray.model.workflow import Workflow

Counts = dict[str, int]


class Node(NamedTuple):
    """One step, as a drawing needs it."""

    id: str
    step: str | None
    task: str
    state: str
    reason: str | None


class Workflows:
    """Workflows, to look at."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, workflow_id: str) -> tuple[Workflow, dict[str, int]] | None:
        """A workflow and how many of its jobs are in which state."""

        def look(tx: Session) -> tuple[Workflow, Counts] | None:
            found = tx.rows("workflow_get", id=workflow_id)
            if not found:
                return None
            return Workflow(*found[0]), dict(tx.rows("workflow_counts", id=workflow_id))

        return self._db.read(look)

    def newest(self, *, limit: int = 100, before: str = LAST_ID) -> list[Workflow]:
        """The newest workflows before an id."""
        return [Workflow(*r) for r in self._db.read(lambda tx: tx.rows("workflow_list", limit=limit, before=before))]

    def tallies(self, ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many jobs of each of these workflows are in which state."""
        counts: dict[str, Counts] = {workflow_id: {} for workflow_id in ids}
        for workflow_id, state, n in self._db.read(lambda tx: tx.rows("workflow_tallies", ids=list(ids))):
            counts[workflow_id][state] = n
        return counts

    def find(self, part: str, limit: int = 10) -> list[str]:
        """The ids of workflows that contain a part (lower case), newest first."""
        if not is_part_of_id(part):
            return []
        found = self._db.read(lambda tx: tx.rows("workflow_find_part", pattern=f"%{part}%", limit=limit))
        return [row[0] for row in found]

    def jobs(self, workflow_id: str, states: frozenset[str]) -> list[str]:
        """The ids of a workflow's jobs in these states."""
        found = self._db.read(lambda tx: tx.rows("workflow_jobs", id=workflow_id, states=sorted(states)))
        return [row[0] for row in found]

    def step(self, workflow_id: str, step: str) -> str | None:
        """The id of the job that is this step."""
        found = self._db.read(lambda tx: tx.rows("workflow_step", id=workflow_id, step=step))
        return found[0][0] if found else None

    def drawing(self, workflow_id: str) -> tuple[list[Node], list[tuple[str, str]]]:
        """The jobs of a workflow in the order they were made, and (parent, child) of its edges at one moment."""

        def look(tx: Session) -> tuple[list[Node], list[tuple[str, str]]]:
            nodes = [Node(*row) for row in tx.rows("workflow_nodes", id=workflow_id)]
            return nodes, [(parent, child) for parent, child in tx.rows("workflow_edges", id=workflow_id)]

        return self._db.read(look)

    def moved_by(self, workflow_id: str, limit: int = 500) -> list[str]:
        """Of a workflow whose live jobs all wait: the jobs whose end will move it. None: it is held."""
        return [row[0] for row in self._db.read(lambda tx: tx.rows("workflow_moved_by", id=workflow_id, limit=limit))]
