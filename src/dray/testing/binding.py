"""An App on another database or by another clock, for a while."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dray.address import PostgresAddress, parse_address
from dray.app import App
from dray.app_interface import core_of
from dray.backends import Backend
from dray.backends.joined import JoinedDatabase
from dray.backends.scratch import looking_there_first, remove_scratch, scratch_url
from dray.clock import Clock, Ids
from dray.core import Binding
from dray.errors import ConfigError
from dray.interrupts import CleanExit, Lent
from dray.sanitize import redact
from dray.settings import Settings
from dray.testing.movable import MovableClock
from dray.waiter import Waiter

URL_VARIABLE = "DRAY_TEST_URL"
_PREFIX = "dray_test_"
_LOCK_PATIENCE = 2.0  # seconds, unless the App has a busy_timeout of its own


class Rebound(CleanExit):
    """``with Rebound(app, settings, clock)``: the App uses these, and afterwards what it used before.

    `connection`: an open transaction that everything happens in. Blocks may be nested.
    """

    def __init__(self, app: App, settings: Settings, clock: Clock, connection: Any = None) -> None:
        self._app, self._settings, self._clock, self._connection = app, settings, clock, connection
        self._before: Binding | None = None

    def __enter__(self) -> App:
        app = self._app
        refuse_workers(app)
        opened = None
        if self._connection is not None:
            own = self._settings.open(self._clock)
            opened = Backend(JoinedDatabase(own.db, self._connection)), Waiter(own)
        core = core_of(app)
        self._before = core.binding
        core.binding = Binding(self._settings, self._clock, Ids(self._clock), opened)
        return app

    def leave(self, error: BaseException | None) -> None:
        is_working = bool(core_of(self._app).on_enqueue)
        self.cleanup()
        if is_working and error is None:
            raise ConfigError("a worker was started inside this block and still runs: stop it inside the block")

    def cleanup(self) -> None:
        before = self._before
        if before is not None:
            self._app.close()
            core_of(self._app).binding = before
            self._before = None


def refuse_others(app: object) -> None:
    """A module or a task in place of the App is the likeliest mistake."""
    if not isinstance(app, App):
        raise TypeError(f"this takes a dray.App, not {type(app).__name__}; pass the App itself, as in database(app)")


def refuse_workers(app: App, what_now: str = "stop it first, and start it inside the block") -> None:
    """A worker here would go on with the database and the clock that it was started with."""
    if core_of(app).on_enqueue:
        raise ConfigError(f"a worker of this App runs in this process; {what_now}")


@contextmanager
def movable(app: App, connection: Any = None) -> Generator[MovableClock]:
    """A clock of the App's that can be moved: the one it has, or one for this block. `connection`: see `Rebound`."""
    found = core_of(app).clock
    if isinstance(found, MovableClock) and connection is None:
        yield found
        return
    clock = found if isinstance(found, MovableClock) else MovableClock()
    with Rebound(app, core_of(app).settings, clock, connection):
        yield clock


@contextmanager
def database(app: App) -> Generator[App]:
    """``with database(app):`` the App's jobs go to a database of their own, which is removed afterwards.

    A SQLite file in a temporary folder; or, if DRAY_TEST_URL names a PostgreSQL, a new schema on it. The tables are
    there when the block begins. The modules of the App are not touched: its tasks and schedules stay known.

    Example:

        >>> with database(app):
        ...     job = add.enqueue(1, 2)
        ...     len(app.jobs())
        1
    """
    refuse_others(app)
    refuse_workers(app)
    place = _Place()
    with Lent(place.make, place.remove) as url:
        settings = replace(core_of(app).settings, url=url, migrate=True, listen_url=None)
        if settings.busy_timeout == Settings.of(url).busy_timeout and settings.is_sqlite:
            # It is mostly the test itself that keeps the lock, and then no wait helps.
            settings = replace(settings, busy_timeout=_LOCK_PATIENCE)
        with Rebound(app, settings, MovableClock()):
            core_of(app).backend.migrate()
            yield app


class _Place:
    """A new, empty place for a database."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._schema_url: str | None = None

    def make(self) -> str:
        given = os.environ.get(URL_VARIABLE)
        if not given:
            # Its name is known before it is made: an exception in between must not leave it behind.
            self._folder = folder = Path(tempfile.gettempdir()).resolve() / f"{_PREFIX}{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            return f"sqlite:///{quote(os.fsencode(folder / 'dray.db'))}"
        address = parse_address(given)
        if not isinstance(address, PostgresAddress):
            raise ConfigError(
                f"{URL_VARIABLE} is {redact(given)!r}, which is no PostgreSQL; unset it to test on SQLite"
            )
        self._schema_url = scratch_url(address.conninfo, _PREFIX)
        return looking_there_first(self._schema_url)

    def remove(self) -> None:
        """Idempotent, and there may be nothing."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._schema_url is not None:
            remove_scratch(self._schema_url)
