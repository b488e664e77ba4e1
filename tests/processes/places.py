"""Where scenarios run, and several of them at once, because they mostly wait.

A scenario takes what it needs from `Places` and leaves nothing behind. Those that a test file lists as TOGETHER begin
together with the first of its tests, a few at a time; each test waits for its own.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes.harness import Fleet, side_by_side
from tests.server import Server

if TYPE_CHECKING:
    from tests.schemas import Schemas

_numbers = itertools.count(1)
_LONGEST = 300.0
_AT_ONCE = 5  # of a file; with all of them, and four files at once, two cores took seconds to start a process


class Places:
    """Makes fleets, and servers that may be harmed."""

    def __init__(self, folder: Path, template: Path, postgres_server: str, schemas: Schemas) -> None:
        self._folder = folder
        self._template = template  # a SQLite file with empty tables
        self._server = postgres_server
        self._schemas = schemas
        self._lock = threading.Lock()

    @contextmanager
    def sqlite(self) -> Generator[Fleet]:
        folder = self._new_folder()
        shutil.copy(self._template, folder / "jobs.db")
        with _closing(Fleet(f"sqlite:///{folder / 'jobs.db'}", folder / "fleet")) as fleet:
            yield fleet

    @contextmanager
    def postgres(self) -> Generator[Fleet]:
        with self._lock:
            schema = self._schemas.take()
        with _closing(Fleet(f"{self._server}&schema={schema}", self._new_folder())) as fleet:
            yield fleet
        with self._lock:
            self._schemas.give_back(schema)

    @contextmanager
    def server(self) -> Generator[tuple[Server, Fleet]]:
        """A server of its own."""
        server = Server()
        try:
            with _closing(Fleet(f"{server.url}&schema=own", self._new_folder())) as fleet:
                yield server, fleet
        finally:
            server.remove()

    def _new_folder(self) -> Path:
        folder = self._folder / str(next(_numbers))
        folder.mkdir()
        return folder


@contextmanager
def _closing(fleet: Fleet) -> Generator[Fleet]:
    try:
        yield fleet
    finally:
        fleet.close()


Scenario = Callable[[Places], None]


def on_both(scenario: Callable[[Fleet], None]) -> Scenario:
    """The same on both databases, side by side."""

    @functools.wraps(scenario)
    def run(places: Places) -> None:
        with places.sqlite() as sqlite, places.postgres() as postgres:
            side_by_side([sqlite, postgres], scenario)

    return run


class Together:
    """The scenarios of one test file."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scenario")
        self._runs: dict[Scenario, Future[None]] = {}

    def begin(self, scenario: Scenario) -> Future[None]:
        if scenario not in self._runs:
            self._runs[scenario] = self._threads.submit(scenario, self._places)
        return self._runs[scenario]

    def wait(self, scenario: Scenario) -> None:
        """Until it is over; raises what it raised."""
        self.begin(scenario).result(_LONGEST)

    def close(self) -> None:
        self._threads.shutdown()
