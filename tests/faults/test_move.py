"""Whichever call fails while a database is moved: run again the move is done, or taken back it never was."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.backends.tables import Portion
from dray.clock import Ids, SystemClock
from dray.errors import DatabaseClosed, DrayError
from dray.model.new_job import NewJob
from dray.ops import move, move_plan
from dray.ops.audit import audit
from tests.backends.whole import everything, rolled_up, sql
from tests.cli.move.contents import fill
from tests.faults import postgres_proxy, sqlite_driver
from tests.faults.count import Count, Figures
from tests.faults.databases import deadline, in_memory
from tests.faults.trial import ALL, RUNS, Trial, Way
from tests.faults.worker import until

_LONGEST = 20.0
_PORTION = Portion(rows=5)  # several to a table
_ids = Ids(SystemClock())


class Move:
    """A file that is copied for each run, an empty schema for each, and what fails between them."""

    def __init__(self, folder: Path, server: str, driver: sqlite_driver.Driver, proxy: postgres_proxy.Proxy) -> None:
        self._folder = folder
        self._server = server
        self._proxy = proxy
        self.driver = driver
        self._runs = 0
        self._template = folder / "template.db"
        fill(f"sqlite:///{self._template}", jobs=8)
        with closing(sqlite3.connect(self._template)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._rows = everything(f"sqlite:///{self._template}")
        self._rolled_up = rolled_up(f"sqlite:///{self._template}")
        assert self._rolled_up
        driver.watch(folder)

    @contextmanager
    def run(self) -> Generator[None]:
        """Both sides as they are before a move."""
        self._runs += 1
        self._file, self._schema = f"{self._runs}.db", f"moved_{self._runs}"
        shutil.copy(self._template, self._folder / self._file)
        self.source = f"sqlite:///{self._folder / self._file}"
        self.target = f"{self._server}&schema={self._schema}"
        try:
            yield
        finally:
            with psycopg.connect(self._server, autocommit=True) as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{self._schema}" CASCADE'.encode())
            for file in self._folder.glob(f"{self._file}*"):
                file.unlink()

    def move(self, *, faulty: bool) -> None:
        with self._sides(faulty=faulty) as (source, target):
            move.carry(move_plan.plan(source, target), portion=_PORTION)

    def abandon(self) -> None:
        with self._sides(faulty=False) as (source, target):
            has_begun = bool(
                self._notes(self.source) or (target.backend.schema_version() and self._notes(self.target))
            )
            if has_begun:
                move.abandon(source, target)

    @contextmanager
    def _sides(self, *, faulty: bool) -> Generator[tuple[move.Side, move.Side]]:
        """As the command opens them; which way they are reached is not part of their names."""
        target = f"{self._proxy.url}&schema={self._schema}" if faulty else self.target
        here, there = (open_backend(url, create=False, busy_timeout=0.1) for url in (self.source, target))
        try:
            yield move.Side(here, "here"), move.Side(there, "there")
        finally:
            here.close()
            there.close()

    # What must hold

    def check_connections(self) -> None:
        assert len(self.driver.open_transactions()) == 0
        sql(self.source, "PRAGMA wal_checkpoint(TRUNCATE)")
        is_ours = "datname = current_database() AND application_name = 'dray'"
        look = f"SELECT query FROM pg_stat_activity WHERE {is_ours} AND state LIKE 'idle in%'"
        until(lambda: sql(self.target, look) == [], "the server to see that its clients have gone")

    def has_moved(self) -> None:
        assert everything(self.target) == self._rows
        assert rolled_up(self.target) == self._rolled_up
        with opened(self.source) as backend, pytest.raises(DatabaseClosed):
            enqueue(backend)
        with opened(self.target) as backend:
            enqueue(backend)
            assert audit(backend, patience=0).broken == ()
        assert self._notes(self.target) == ["moved_from"]

    def has_not_moved(self) -> None:
        assert everything(self.source) == self._rows
        assert rolled_up(self.source) == self._rolled_up
        with opened(self.source) as backend:
            enqueue(backend)
            assert audit(backend, patience=0).broken == ()
        assert self._notes(self.source) == []
        with opened(self.target) as backend:
            if backend.schema_version() is None:
                return
            assert {name: len(rows) for name, rows in everything(self.target).items() if rows} == {}
            assert rolled_up(self.target) == []
            enqueue(backend)

    def _notes(self, url: str) -> list[str]:
        """What a move has written down, beside what is in every database."""
        known = "SELECT name FROM dray_meta WHERE name NOT IN ('oldest_code', 'version', 'rollups') ORDER BY name"
        return [name for (name,) in sql(url, known)]


@contextmanager
def opened(url: str) -> Generator[Backend]:
    backend = open_backend(url, create=False)
    try:
        yield backend
    finally:
        backend.close()


def enqueue(backend: Backend) -> None:
    backend.jobs.enqueue([NewJob(id=_ids.new(), task="tasks.add")])


def run(moving: Move, count: Count, way: Way, at: int) -> int:
    with moving.run():
        error: DrayError | None = None
        count.arm(way.fault, at, lasting=way.is_lasting)
        try:
            with deadline(_LONGEST):
                moving.move(faulty=True)
        except DrayError as raised:
            error = raised.with_traceback(None)
            error.__cause__ = error.__context__ = None
        finally:
            injected = count.disarm()
        try:
            with deadline(_LONGEST):
                look_after(moving, error, is_wanted=at % 3 > 0)
        except BaseException as problem:
            problem.add_note("it returned" if error is None else f"it raised {type(error).__name__}: {error}")
            raise
        assert error is None or injected, error
        return injected


def look_after(moving: Move, error: DrayError | None, *, is_wanted: bool) -> None:
    moving.check_connections()
    if error is not None and not is_wanted and not is_done(moving):
        moving.abandon()
        moving.has_not_moved()
        return
    if error is not None:
        moving.move(faulty=False)
    moving.has_moved()


def is_done(moving: Move) -> bool:
    """Whether it ended all the same, and only the answer was lost: then it cannot be taken back."""
    with opened(moving.target) as backend:
        return backend.schema_version() is not None and "moved_from" in backend.transfer.facts()


# The driver cannot close a cursor whose connection is lost, and then complains that it is open.
@pytest.mark.filterwarnings("ignore:.*ServerCursor.* was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("side", ["source", "target"])
def test_whichever_call_of_a_move_fails(side: str, postgres_server: str) -> None:
    counts = {"source": Count(), "target": Count()}
    figures = Figures(f"faults in moves, at the {side}")
    driver = sqlite_driver.Driver(counts["source"])
    proxy = postgres_proxy.Proxy(postgres_server, counts["target"])
    faults = sqlite_driver.FAULTS if side == "source" else postgres_proxy.FAULTS
    try:
        with in_memory() as folder, driver.at_work():
            moving = Move(folder, postgres_server, driver, proxy)
            count = counts[side]
            trial = Trial(f"move, {side}", lambda way, at: run(moving, count, way, at), count, figures)
            trial.everywhere(list(map(Way, faults)), runs=RUNS if RUNS >= ALL else 6, at_a_time=3)
    finally:
        proxy.close()
        figures.print()
