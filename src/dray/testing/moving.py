"""A clock that tests move."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

from dray.app import App
from dray.app_interface import core_of
from dray.errors import ConfigError
from dray.instants import from_datetime, to_datetime
from dray.model.values import duration_us
from dray.testing.binding import movable, refuse_workers
from dray.testing.movable import MovableClock, Stopped


class ClockControl:
    """The time of an App in a test.

    Example:

        >>> with clock(app, at=datetime(2030, 1, 1, tzinfo=UTC)) as time:
        ...     time.advance(60)
        ...     time.now.minute
        1
    """

    def __init__(self, app: App, clock: MovableClock) -> None:
        self._app, self._clock = app, clock

    def __repr__(self) -> str:
        return f"<clock at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """What the App takes for the present, in UTC: ``time.now.year  # 2030``."""
        return to_datetime(self._clock.now())

    def advance(self, seconds: float | timedelta) -> None:
        """Lets time pass: ``time.advance(60)``. What comes due by it is run by the next `drain`."""
        passed_us = duration_us("seconds", seconds)
        core_of(self._app).load()
        core_of(self._app).declare_schedules(core_of(self._app).backend)  # their slots count from before it
        self._clock.advance(passed_us)
        # For a worker that was started inside the block.
        core_of(self._app).recall()
        for tell in list(core_of(self._app).on_schedule):
            tell()


@contextmanager
def clock(app: App, *, at: datetime | None = None) -> Generator[ClockControl]:
    """``with clock(app) as time:`` the App's time stands still until ``time.advance(seconds)``. `at`: its start.

    Example:

        >>> with clock(app) as time:
        ...     job = add.using(delay=60).enqueue(1, 2)
        ...     time.advance(60)
        ...     drain(app, delays=False)
        1
    """
    if at is not None and at.tzinfo is None:
        raise ConfigError(f"at={at} has no time zone; write datetime(…, tzinfo=UTC)")
    refuse_workers(app)
    with movable(app) as found, Stopped(found):
        if at is not None:
            found.set(from_datetime(at))
        yield ClockControl(app, found)
