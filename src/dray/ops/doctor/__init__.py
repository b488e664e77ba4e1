"""The doctor: looks at everything that can be wrong with a queue, changes nothing, and says what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dray.ops.doctor import database, machine, work
from dray.ops.doctor.check import Check, Code, Result, Subject, Verdict, run

CHECKS: tuple[Check, ...] = (
    *machine.CODE_CHECKS,
    *machine.MACHINE_CHECKS,
    *database.OPENING_CHECKS,
    *machine.FILE_CHECKS,
    *database.SERVER_CHECKS,
    *database.TABLE_CHECKS,
    *work.WORK_CHECKS,
)
BARRIERS = frozenset({"database", "schema"})  # where they fail there is no queue to look at


def examine(subject: Subject, skip: Collection[str] = ()) -> Iterator[Result]:
    """The results as they come; those that do not apply, or rest on a database that cannot be read, are not there."""
    return run(CHECKS, subject, skip)


__all__ = ["BARRIERS", "CHECKS", "Check", "Code", "Result", "Subject", "Verdict", "examine"]
