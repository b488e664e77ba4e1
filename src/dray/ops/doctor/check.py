"""What a check is, what it may look at and what it finds; runs checks one after the other, though one may fail."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from dray.backends.database import FileFacts, TookTooLong
from dray.backends.store.doctor import MOST
from dray.backends.store.liveness import Life
from dray.errors import DrayError
from dray.instants import SECOND
from dray.maintenance import Scheduler, duties
from dray.sanitize import redact
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.backends.store.doctor import Examination, Ready, Seen, ServerFacts
    from dray.clock import Clock
    from dray.model.job import Queue
    from dray.model.schedule import Schedule
    from dray.settings import Settings

_SETTLED_US = 30 * SECOND  # a worker looks at the duties each two seconds; on PostgreSQL a dead one's are free later


@dataclass(frozen=True, slots=True)
class Code:
    """The app, as the caller has found it."""

    app: str | None = None  # where it is; None: there is none here
    tasks: Collection[str] = ()
    problem: str | None = None  # why it cannot be had
    address: str = "given"  # where the database's address comes from, in words
    unused: str | None = None  # what else names a database, and does not count
    is_sought: bool = True  # False: only the database was named, so no code is run


@dataclass
class Subject:
    """Facts are read once, when a check first asks for them."""

    settings: Settings
    backend: Backend
    clock: Clock
    code: Code = field(default_factory=Code)
    python: tuple[int, ...] = sys.version_info[:3]
    sqlite: tuple[int, ...] = sqlite3.sqlite_version_info
    seconds: float = 1.0  # that a question to the database may take

    @cached_property
    def eyes(self) -> Examination:
        return self.backend.examine(self.seconds)

    @cached_property
    def file(self) -> FileFacts | None:
        """None: there is no file, or this user cannot reach it; opening the database says which."""
        try:
            return self.eyes.file()
        except OSError:
            return None

    @cached_property
    def server(self) -> tuple[ServerFacts, int] | None:
        return self.eyes.server()

    @cached_property
    def now(self) -> int:
        return self.eyes.now()

    @cached_property
    def seen(self) -> list[Seen]:
        return self.eyes.workers()

    @property
    def live(self) -> list[Seen]:
        """Workers that are not known to be gone."""
        return [each for each in self.seen if each.life is not Life.GONE]

    @cached_property
    def ready(self) -> list[Ready]:
        return self.eyes.ready()

    @cached_property
    def queues(self) -> list[Queue]:
        return self.eyes.queues()

    @property
    def paused(self) -> set[str]:
        return {queue.name for queue in self.queues if queue.paused_at is not None}

    @cached_property
    def schedules(self) -> list[Schedule]:
        return self.eyes.schedules()

    def free_duties(self) -> list[str]:
        """Duties without a worker, though one that could take them has been there for a while."""
        if not any(self.now - each.worker.started_at > _SETTLED_US for each in self.live):
            return []
        # Those of a worker that is gone are taken over once it is buried.
        there = {each.worker.id for each in self.seen}
        held = {lease.duty for lease in self.eyes.leases() if lease.holder in there}
        return [duty for duty in self._exclusive() if duty not in held]

    def _exclusive(self) -> list[str]:
        from random import Random  # noqa: PLC0415 - made, and never used

        made = duties(self.backend, self.clock, Random())  # noqa: S311
        return [*(duty.name for duty in made if duty.is_exclusive), Scheduler.name]


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_NAMED = 3


def span(us: int) -> str:
    """A duration in its largest unit."""
    seconds = us / SECOND
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def size(count: int) -> str:
    """Bytes."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return counted(count, "byte")


def count_of(count: int, noun: str) -> str:
    """A count with its noun; the database stops counting at `MOST`."""
    more = "at least " if count >= MOST else ""
    return f"{more}{counted(count, noun)}"


def listed(names: Collection[str]) -> str:
    """The first of some names."""
    first = list(names)[:_NAMED]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest:,} more" if rest else "")


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to do
    WARNING = "warning"  # it works, and may not for long, or not as well as it could
    FAILED = "failed"


class Finding(NamedTuple):
    """What a check found, in words, and what to do about it."""

    verdict: Verdict
    text: str
    fix: str | None = None


class Check(NamedTuple):
    """``look`` returns None if the check does not apply. ``after``: the check that must not have failed."""

    name: str
    look: Callable[[Subject], Finding | None]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A check that was made."""

    name: str
    verdict: Verdict
    text: str
    fix: str | None


def ok(text: str) -> Finding:
    return Finding(Verdict.OK, text)


def note(text: str, fix: str | None = None) -> Finding:
    return Finding(Verdict.NOTE, text, fix)


def warning(text: str, fix: str) -> Finding:
    return Finding(Verdict.WARNING, text, fix)


def failed(text: str, fix: str) -> Finding:
    return Finding(Verdict.FAILED, text, fix)


def failed_by(error: DrayError) -> Finding:
    """Errors say what happened; what to do next."""
    text, _, advice = str(error).rpartition("; ")
    return failed(text, advice) if text else failed(advice, "dray db status")


def run(checks: Iterable[Check], subject: Subject, skip: Collection[str] = ()) -> Iterator[Result]:
    """Makes the checks; skips those that depend on one that failed, or was skipped for that reason."""
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
