"""How bodies ended whose workers had to go before they could write it: another transaction had locked the job's row.

A worker leaves the outcome beside the job, in a table without contention. The rescuer that takes the job back, once
the row is free and the worker gone, writes it by the worker's own claim instead of a crash: a body that ended is not
run again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dray.backends.database import Session
from dray.backends.store import Store
from dray.backends.store.work import WorkStore
from dray.errors import GraphError, UnknownJob
from dray.model.job import State
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement, unstorable

Unwritten = tuple[Settlement, Sequence[NewJob]]  # with the steps that it adds to its workflow
Left = tuple[str, Settlement, list[NewJob]]  # the same, by the worker that left it


class OutcomeStore(Store):
    def leave(self, worker_id: str, ended: Sequence[Unwritten]) -> None:
        """Leaves how attempts ended, each with the steps it adds, for the rescuer of their jobs: the worker has
        to go, and another transaction has locked the rows. Waits for none of them. `workers.rescue` writes it once
        that is over, if the claim still holds; one whose claim is lost is not left."""
        steady = self._db.clock.steady()
        given = [(s.id, worker_id, s.claim, _packed(s, new, steady)) for s, new in ended]
        self._db.write(lambda tx: tx.each("outcome_leave", given))

    def find(self, tx: Session, ids: Sequence[str]) -> dict[tuple[str, int], Left]:
        """By job and claim."""
        steady = self._db.clock.steady()
        rows = tx.rows("outcome_find", ids=list(ids)) if ids else []
        return {
            (job_id, claim): _unpacked(worker_id, task, text, steady - max(0, now - left_at))
            for job_id, claim, worker_id, text, left_at, now, task in rows
        }

    def write(self, left: Left) -> str | None:
        """Ends the attempt as its worker would have; returns the job's state, None if another rescuer was first."""
        worker_id, settlement, new = left
        work = WorkStore(self._db)
        try:
            settled = work.grow(worker_id, settlement, new)
        except (GraphError, UnknownJob) as error:
            settlement = unstorable(
                settlement, f"the body returned, but the steps it added cannot be written: {error}"
            )
            settled = work.grow(worker_id, settlement, ())
        if settlement.id in {*settled.stale, *settled.already, *settled.locked}:
            return None
        if settlement.id in settled.cancelled:
            return State.CANCELLED
        return State.FAILED if settlement.id in settled.refused else settlement.state


def _packed(settlement: Settlement, new: Sequence[NewJob], steady: int) -> str:
    """Readings of the steady clock mean nothing to another machine: they become ages. The task is in the job's row,
    the class of the error beside the settlement: a rescuer of an earlier release would not know what they are."""
    ages = {"started": steady - settlement.started, "finished": steady - settlement.finished}
    given = settlement._asdict() | ages
    del given["task"], given["key"], given["unspent"]  # of a job that goes back, the next worker finds the key again
    error_class = given.pop("error_class")
    return json.dumps({"settlement": given, "new": [_fields(job) for job in new], "error_class": error_class})


def _fields(job: NewJob) -> dict[str, Any]:
    """Without a key that it has not: a rescuer of an earlier release knows none."""
    given = asdict(job)
    if job.key is None:
        del given["key"]
    return given


def _unpacked(worker_id: str, task: str, text: str, left_at: int) -> Left:
    found: dict[str, Any] = json.loads(text)
    given = found["settlement"]
    times = {name: left_at - given[name] for name in ("started", "finished")}
    lists = ("parents", "tags")
    new = [NewJob(**job | {name: tuple(job[name]) for name in lists}) for job in found["new"]]
    return worker_id, Settlement(**given | times, task=task, error_class=found.get("error_class")), new
