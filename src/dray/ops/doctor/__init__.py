"""The doctor: looks at everything that can be wrong with a queue, changes nothing, and says what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dray.backends.database import TookTooLong
from dray.errors import DrayError
from dray.ops.doctor import database, machine, work
from dray.ops.doctor.check import Check, Finding, Look, Subject, Verdict, failed, failed_by, note
from dray.sanitize import redact


def _checks(after: str | None, *looks: Look) -> list[Check]:
    """A check has the name of its function."""
    return [Check(look.__name__.replace("_", "-"), look, after) for look in looks]


CHECKS: tuple[Check, ...] = (
    *_checks(None, machine.configuration, machine.app, machine.python, machine.sqlite, machine.driver),
    *_checks(None, machine.disk, machine.inotify, database.database),
    *_checks("database", database.schema),
    *_checks("schema", database.moved),
    *_checks(None, machine.file_system, machine.permissions, machine.journal, machine.wal, machine.write_lock),
    *_checks("database", machine.pages, database.server, database.commits, database.listen),
    *_checks("database", database.connections, database.transactions),
    *_checks("schema", database.vacuum),
    *_checks("database", database.integrity),
    *_checks("schema", database.clock),
    *_checks("moved", database.history, work.workers, work.dead_workers, work.silent_workers, work.duties),
    *_checks("moved", work.older_code, work.unknown_tasks, work.unserved_queues, work.paused_queues),
    *_checks("moved", work.backlog, work.timeouts, work.failures, work.schedules),
)
BARRIERS = frozenset({"database", "schema"})  # where they fail there is no queue to look at


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    verdict: Verdict
    text: str
    fix: str | None


def examine(subject: Subject, skip: Collection[str] = (), checks: Collection[Check] = CHECKS) -> Iterator[Result]:
    """The results as they come; skips checks that depend on one that failed, or was skipped for that reason."""
    barred: set[str] = set()
    for check in checks:
        if check.after in barred:
            barred.add(check.name)
            continue
        finding = None if check.name in skip else _look(check, subject)
        if finding is None:
            continue
        if finding.verdict is Verdict.FAILED:
            barred.add(check.name)
        fix = None if finding.verdict is Verdict.OK or finding.fix is None else redact(finding.fix)
        yield Result(check.name, finding.verdict, redact(finding.text), fix)


def _look(check: Check, subject: Subject) -> Finding | None:
    try:
        return check.look(subject)
    except TookTooLong as error:
        return note(f"not known: {error}", "look again when the database is less busy")
    except DrayError as error:
        return failed_by(error)
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others find
        what = f"{type(error).__name__}: {error}"
        return failed(f"this could not be checked: {what}", "if the database is well otherwise, report this")
