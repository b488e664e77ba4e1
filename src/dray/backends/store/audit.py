"""Looks at the tables for what should never be: reads only, in parts, so that no look lasts long.

Each part is one consistent read of a stretch of all jobs with everything that belongs to them, and what is looked for
in it holds at every commit: work that goes on meanwhile cannot make it look wrong.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.backends.database import Database, Session
from dray.backends.store.jobs import LAST_ID
from dray.instants import HOUR
from dray.model.limits import ATTEMPTS_KEPT, LOG_LINES

_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_SLACK_US = HOUR  # that a clock may have been set back by
_EDGES, _REACH = 1_000, 100_000  # how far circles are looked for


class Odd(NamedTuple):
    """Something that does not hold: which rule, and of what."""

    rule: str
    id: str


class AuditPart(NamedTuple):
    """One stretch of all jobs."""

    until: str | None  # its last job; None: there are no more
    jobs: int
    found: list[Odd]


class Repetition(NamedTuple):
    """What should be there once and is not: how often, and the first of the jobs it is of."""

    rule: str
    times: int
    ids: list[str]


class Whole(NamedTuple):
    """What can only be seen of all jobs together, and what is of none."""

    repeated: list[Repetition]
    found: list[Odd]


class AuditStore:
    """What should never be."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def part(self, after: str | None, limit: int) -> AuditPart:
        """What does not hold of the `limit` jobs after an id and of all that belongs to them, in one consistent read;
        go on after the `until` that it answers. Both are None for the ends."""
        first = after or _FIRST_ID

        def work(tx: Session) -> AuditPart:
            until, jobs = tx.rows("audit_bound", after=first, limit=limit)[0]
            if jobs < limit:
                until = None
            given = {"after": first, "until": until or LAST_ID}
            rows = [
                *tx.rows("audit_jobs", slack_us=_SLACK_US, **given),
                *tx.rows("audit_payloads", **given),
                *tx.rows("audit_edges", **given),
                *tx.rows("audit_attempts", kept=ATTEMPTS_KEPT, **given),
                *tx.rows("audit_logs", kept=LOG_LINES, **given),
            ]
            return AuditPart(until, jobs, sorted({Odd(*row) for row in rows}))

        return self._db.read(work)

    def whole(self, limit: int) -> Whole:
        """What only all jobs together can show, and what belongs to none; at most `limit` ids of a kind."""

        def repeated(rule: str, statement: str) -> Repetition:
            found = self._db.read(lambda tx: tx.rows(statement, limit=limit))
            return Repetition(rule, found[0][1] if found else 0, [row[0] for row in found])

        circles = self._db.read(lambda tx: tx.rows("audit_circles", edges=_EDGES, reach=_REACH))
        return Whole(
            [
                repeated("unique-holder", "audit_unique"),
                repeated("step", "audit_steps"),
                repeated("slot-once", "audit_slots"),
            ],
            [
                *(Odd("circle", row[0]) for row in circles),
                *(Odd(*row) for row in self._db.read(lambda tx: tx.rows("audit_workers"))),
            ],
        )

    def orphans(self) -> set[tuple[str, int]]:
        """(id, claim) of running jobs whose worker has ended: they are about to be taken back."""
        return {(job_id, claim) for job_id, claim in self._db.read(lambda tx: tx.rows("audit_orphans"))}
