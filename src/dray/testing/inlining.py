"""Inline mode: every enqueue runs its jobs at once."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from dray.app import App
from dray.app_interface import core_of
from dray.errors import DrayError
from dray.handle.job import Job
from dray.interrupts import CleanExit
from dray.runtime.execution import current
from dray.testing.binding import movable, refuse_others, refuse_workers
from dray.testing.draining import Drainer, HandLink, Tally, refuse_async

_DEEPEST = 20
_PATIENCE = 60.0
_DOORS = ("submit", "asubmit", "submit_alike", "asubmit_alike")  # every enqueue comes through one of these


@contextmanager
def inline(app: App) -> Generator[App]:
    """``with inline(app):`` an enqueue writes its jobs and runs them to their end before it returns.

    They run as `drain` runs them, in the thread that enqueues: with the same arguments after JSON, retries, delays
    without waiting, errors stored in the job. Other jobs stay where they are.

    Example:

        >>> with inline(app):
        ...     add.enqueue(1, 2).result()
        3
    """
    refuse_others(app)
    refuse_workers(app, "stop it first: inside inline(app), jobs run where they are enqueued")
    with movable(app), nullcontext() if _DOORS[0] in vars(core_of(app)) else _Inline(app):
        yield app


class _TooDeep(BaseException):
    """Unwinds every body in between: retried at each level, it would never end."""


class _Inline(CleanExit):
    """Stands before the App's own ways to enqueue."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        core = core_of(self._app)
        own = {name: getattr(core, name) for name in _DOORS}

        def submit(
            new: Sequence[Any], connection: Any = None, workflow: Any = None, action: Any = None
        ) -> list[Job[Any]]:
            refuse_async(connection)
            return self._run(own["submit"](new, connection, workflow, action), connection)

        def submit_alike(jobs: Any, connection: Any = None) -> list[Job[Any]]:
            refuse_async(connection)
            return self._run(own["submit_alike"](jobs, connection), connection)

        # Without a connection both call those above, on a thread.

        async def asubmit(new: Sequence[Any], connection: Any = None, workflow: Any = None) -> list[Job[Any]]:
            refuse_async(connection)
            made = await own["asubmit"](new, connection, workflow)
            return made if connection is None else self._run(made, connection)

        async def asubmit_alike(jobs: Any, connection: Any = None) -> list[Job[Any]]:
            refuse_async(connection)
            made = await own["asubmit_alike"](jobs, connection)
            return made if connection is None else self._run(made, connection)

        vars(core).update(zip(_DOORS, (submit, asubmit, submit_alike, asubmit_alike), strict=True))

    def leave(self, error: BaseException | None) -> None:  # noqa: ARG002 - the end is the same
        self.cleanup()

    def cleanup(self) -> None:
        for name in _DOORS:
            vars(core_of(self._app)).pop(name, None)

    def _run(self, jobs: list[Job[Any]], connection: Any) -> list[Job[Any]]:
        outer = current.get()
        if outer is not None and isinstance(outer.link, HandLink):
            self._drain(jobs, connection, outer.link.tally)  # inside a body, which waits for it
            return jobs
        # One at a time: two would take each other's jobs, and give them back after the other has looked for them.
        if not self._lock.acquire(timeout=_PATIENCE):
            raise DrayError(
                f"another thread has run jobs inline for {_PATIENCE:g} s; let no body wait for jobs of another thread"
            )
        try:
            self._drain(jobs, connection, Tally())
        except _TooDeep:
            raise DrayError(
                f"jobs enqueue jobs, {_DEEPEST} deep, and each runs inside the one before: leave inline(app) out "
                "and call drain(app), which runs one after the other"
            ) from None
        finally:
            self._lock.release()
        return jobs

    def _drain(self, jobs: list[Job[Any]], connection: Any, tally: Tally) -> None:
        if tally.depth == _DEEPEST:
            raise _TooDeep
        tally.depth += 1
        try:
            with movable(self._app, connection) as clock:
                Drainer(self._app, clock, only={job.id for job in jobs}, tally=tally).run()
        finally:
            tally.depth -= 1
