"""What is examined: one database, the code that uses it, and the machine that both are seen from."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dray.backends.database import FileFacts
from dray.backends.store.liveness import Life
from dray.instants import SECOND
from dray.maintenance import Scheduler, duties

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
    """The app, as whoever asks has found it."""

    app: str | None = None  # where it is; None: there is none here
    tasks: Collection[str] = ()
    problem: str | None = None  # why it cannot be had
    address: str = "given"  # where the database's address comes from, in words
    unused: str | None = None  # what else names a database, and does not count
    is_sought: bool = True  # False: whoever names the database alone wants no code to be run


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
        """None: there is no file, not yet, or none that this user can get at; what the database is opened with says
        which."""
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
        """Duties that nobody has though a worker that could take them has been there for a while."""
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
