"""What a check is, what it may look at, what it finds, and in which words."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from random import Random
from typing import Literal, NamedTuple

from dray.backends import Backend
from dray.backends.database import FileFacts
from dray.backends.store.doctor import MOST, Examination, Seen, ServerFacts
from dray.backends.store.liveness import Life
from dray.clock import Clock
from dray.errors import DrayError
from dray.instants import SECOND
from dray.maintenance import Scheduler, duties
from dray.settings import Settings
from dray.wording import counted

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
        upkeep = self.backend.upkeep
        try:
            return None if upkeep is None else upkeep.facts()
        except OSError:
            return None

    @cached_property
    def server(self) -> ServerFacts | None:
        return self.eyes.server()

    @property
    def live(self) -> list[Seen]:
        """Workers that are not known to be gone."""
        return [each for each in self.eyes.workers if each.life is not Life.GONE]

    def free_duties(self) -> list[str]:
        """Duties without a worker, though one that could take them has been there for a while."""
        if not any(self.eyes.now - each.worker.started_at > _SETTLED_US for each in self.live):
            return []
        # Those of a worker that is gone are taken over once it is buried.
        there = {each.worker.id for each in self.eyes.workers}
        held = {lease.duty for lease in self.eyes.leases() if lease.holder in there}
        made = duties(self.backend, self.clock, Random())  # noqa: S311 - they are never run
        exclusive = [*(duty.name for duty in made if duty.is_exclusive), Scheduler.name]
        return [duty for duty in exclusive if duty not in held]


def span(us: int) -> str:
    """A duration in its largest unit."""
    seconds = us / SECOND
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"


def size(count: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return counted(count, "byte")


def count_of(count: int, noun: str) -> str:
    """A count with its noun; the database stops counting at `MOST`."""
    more = "at least " if count >= MOST else ""
    return f"{more}{counted(count, noun)}"


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to do
    WARNING = "warning"  # it works, and may not for long, or not as well as it could
    FAILED = "failed"


class Finding(NamedTuple):
    verdict: Verdict
    text: str
    fix: str | None = None


class Check(NamedTuple):
    name: str
    look: Callable[..., Finding | None]  # takes the subject, and the facts of what it is `of`; None: does not apply
    after: str | None = None  # the check that must not have failed
    of: Literal["file", "server"] | None = None


ok, note, warning, failed = (partial(Finding, verdict) for verdict in Verdict)


def failed_by(error: DrayError) -> Finding:
    """Errors say what happened; what to do next."""
    text, _, advice = str(error).rpartition("; ")
    return failed(text, advice) if text else failed(advice, "dray db status")
