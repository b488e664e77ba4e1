"""The doctor: looks at everything that can be wrong with a queue, changes nothing, and says what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from dray.backends.database import TookTooLong
from dray.errors import DrayError
from dray.ops.doctor import database, machine, work
from dray.ops.doctor.check import Check, Finding, Subject, Verdict, failed, failed_by, note
from dray.sanitize import redact


def _checks(
    *looks: Callable[..., Finding | None], after: str | None = None, of: Literal["file", "server"] | None = None
) -> list[Check]:
    """A check has the name of its function."""
    return [Check(look.__name__.replace("_", "-"), look, after, of) for look in looks]


CHECKS: tuple[Check, ...] = (
    *_checks(machine.configuration, machine.other_files, machine.app, machine.system, machine.python),
    *_checks(machine.sqlite, machine.driver),
    *_checks(machine.disk, machine.inotify, of="file"),
    *_checks(database.database),
    *_checks(database.schema, after="database"),
    *_checks(database.moved, after="schema"),
    *_checks(machine.file_system, machine.permissions, machine.journal, machine.wal, machine.write_lock, of="file"),
    *_checks(machine.pages, after="database", of="file"),
    *_checks(database.server, database.commits, database.listen, after="database", of="server"),
    *_checks(database.connections, database.transactions, after="database", of="server"),
    *_checks(database.vacuum, after="schema", of="server"),
    *_checks(database.integrity, after="database"),
    *_checks(database.clock, after="schema"),
    *_checks(database.history, work.workers, work.dead_workers, work.silent_workers, work.duties, after="moved"),
    *_checks(work.older_code, work.unknown_tasks, work.unserved_queues, work.paused_queues, after="moved"),
    *_checks(work.limits, work.backlog, work.timeouts, work.failures, work.schedules, after="moved"),
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
        facts = [] if check.of is None else [getattr(subject, check.of)]
        return None if None in facts else check.look(subject, *facts)
    except TookTooLong as error:
        return note(f"not known: {error}", "look again when the database is less busy")
    except DrayError as error:
        return failed_by(error)
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others find
        what = f"{type(error).__name__}: {error}"
        return failed(f"this could not be checked: {what}", "if the database is well otherwise, report this")
