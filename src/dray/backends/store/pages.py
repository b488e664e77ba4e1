"""What the dashboard reads a page at a time: no read goes through more rows than it says, however large tables are.

What no index finds is looked for in a window of the newest rows; a page then says where the next one begins.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from dray.backends.database import LAST_ID, Session
from dray.backends.store import Store, containing
from dray.backends.store.live import LiveJob
from dray.model.action import Action
from dray.model.job import State
from dray.model.schedule import Schedule
from dray.model.workflow import ParentPolicy, Tally, Workflow

WINDOW = 20_000  # rows that one page looks through
COUNTED = 30_000  # jobs that the tallies of one page are counted from
STEPS = 10_000  # steps of a workflow that are read at once
EDGES = 40_000
_LOST = {State.FAILED, State.CANCELLED}

T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    """A page. `next`: where the one after it begins; None: this is the last."""

    rows: list[T]
    next: str | None


class Step(NamedTuple):
    """One job of a workflow, without what is large."""

    id: str
    step: str | None
    task: str
    state: str
    on_parent_failure: str


class Sketch(NamedTuple):
    """A workflow at one moment, its steps in the order they were made. `is_cut`: there are more steps or edges."""

    workflow: Workflow
    steps: list[Step]
    edges: list[tuple[str, str]]
    is_cut: bool

    @property
    def tally(self) -> Tally:
        """Of the steps that were read."""
        lost = {step.id for step in self.steps if step.state in _LOST}
        policies = {step.id: step.on_parent_failure for step in self.steps} if lost else {}
        below = defaultdict[str, set[str]](set)  # of those that were lost: what their children make of it
        for parent, child in self.edges if lost else ():
            if parent in lost:
                below[parent].add(policies.get(child, ""))
        tolerated = Counter(step.state for step in self.steps if below.get(step.id) == {ParentPolicy.RUN})
        return Tally(dict(Counter(step.state for step in self.steps)), dict(tolerated))


class PageStore(Store):
    def workflows(self, *, limit: int, before: str | None = None, part: str = "") -> Found[Workflow]:
        """The newest workflows before an id, with a part in their name, in small or capital letters."""

        def look(tx: Session) -> Found[Workflow]:
            start, pattern = before or LAST_ID, containing(part)
            found = tx.rows("page_workflows", before=start, window=WINDOW, pattern=pattern, limit=limit + 1)
            shown = [Workflow(*row) for row in found[:limit]]
            return Found(shown, shown[-1].id if len(found) > limit else _window_end(tx, "page_workflows_end", start))

        return self._db.read(look)

    def tallies(self, ids: Sequence[str]) -> dict[str, Tally]:
        """How many jobs of each of these workflows are in which state. Those are left out that there was no room to
        count, the oldest of them."""
        found = self._read("page_tallies", ids=list(ids), most=COUNTED) if ids else []
        tallies: dict[str, Tally] = {workflow_id: Tally({}, {}) for workflow_id in ids}
        for workflow_id, state, count, tolerated in found:
            tallies[workflow_id].counts[state] = count
            if tolerated:
                tallies[workflow_id].tolerated[state] = tolerated
        if sum(row[2] for row in found) < COUNTED:
            return tallies
        last = min(row[0] for row in found)  # it may go on beyond what was counted
        return {workflow_id: tally for workflow_id, tally in tallies.items() if workflow_id > last}

    def sketch(self, workflow_id: str) -> Sketch | None:
        """A workflow to be drawn, at one moment; None: there is none of this id."""

        def look(tx: Session) -> Sketch | None:
            found = tx.later("workflow_get", id=workflow_id)
            steps = tx.later("page_steps", id=workflow_id, most=STEPS + 1)
            edges = tx.later("page_edges", id=workflow_id, most=EDGES + 1)
            workflow, step_rows, edge_rows = found(), steps(), edges()
            if not workflow:
                return None
            return Sketch(
                Workflow(*workflow[0]),
                [Step(*row) for row in step_rows[:STEPS]],
                [(parent, child) for parent, child in edge_rows[:EDGES]],
                len(step_rows) > STEPS or len(edge_rows) > EDGES,
            )

        return self._db.read(look)

    def schedules(self, *, limit: int, after: str = "", part: str = "") -> Found[Schedule]:
        """Schedules by name, with a part in their name or their task's."""
        found = self._read("page_schedules", after=after, pattern=containing(part), limit=limit + 1)
        shown = [Schedule(*row) for row in found[:limit]]
        return Found(shown, shown[-1].name if len(found) > limit else None)

    def schedule_jobs(self, name: str, limit: int) -> list[LiveJob]:
        """The newest jobs of a schedule."""
        return [LiveJob(*row) for row in self._read("page_schedule_jobs", name=name, limit=limit)]

    def jobs(self, ids: Sequence[str]) -> dict[str, LiveJob]:
        """Those of these jobs that exist, by id, without their arguments and results."""
        found = self._read("live_jobs", ids=list(ids)) if ids else []
        return {job.id: job for job in (LiveJob(*row) for row in found)}

    def actions(
        self, *, limit: int, before: str | None = None, who: str | None = None, kind: str | None = None
    ) -> Found[Action]:
        """The newest actions before an id, by a person and of a kind."""

        def look(tx: Session) -> Found[Action]:
            start = before or LAST_ID
            found = tx.rows("page_actions", before=start, window=WINDOW, who=who, kind=kind, limit=limit + 1)
            shown = [Action(*row) for row in found[:limit]]
            return Found(shown, shown[-1].id if len(found) > limit else _window_end(tx, "page_actions_end", start))

        return self._db.read(look)


def _window_end(tx: Session, statement: str, before: str) -> str | None:
    """Where to look on, if there is more beyond the window."""
    found = tx.rows(statement, before=before, window=WINDOW - 1)
    return found[0][0] if found and tx.rows(statement, before=found[0][0], window=0) else None
