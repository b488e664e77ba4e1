"""One side of a move: whole tables read and written as plain values, and closed databases."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dray.backends import Backend, open_backend
from dray.backends.postgres.connect import Connector
from dray.backends.store import transfer
from dray.backends.store.transfer import LEFT, MOVE, TABLES, Mark, Repair
from dray.backends.tables import Portion, Shape, Table
from dray.errors import DatabaseClosed, MoveError
from dray.instants import HOUR, MINUTE
from dray.model.job import LogLine
from dray.model.limit import Bound, Kind, Source
from dray.model.rollup import Part, Tally
from dray.model.schedule import Schedule
from dray.ops import move, move_plan
from tests import verbs
from tests.backends.state_machine.sides import Sides
from tests.backends.test_machine import Machine
from tests.backends.whole import everything, path_of, sql
from tests.backends.world import LEASE_US, World

BY_NAME = {table.name: table for table in TABLES}


def shape_of(backend: Backend, table: Table) -> Shape:
    return Shape(table, backend.transfer.reading(lambda tables: tables.columns(table)))


def rows_of(backend: Backend, table: Table, portion: Portion | None = None) -> list[list[Any]]:
    shape = shape_of(backend, table)
    return backend.transfer.reading(
        lambda tables: list(tables.read(shape, table.lowest, table.highest, portion or Portion()))
    )


def allow(*_: object) -> None:
    """Allows any worker."""


def test_every_table_is_carried_or_left_on_purpose(backend: Backend) -> None:
    there = set(backend.transfer.reading(lambda tables: tables.names()))
    assert there | {"payloads"} == {table.name for table in TABLES} | set(LEFT)


def test_both_databases_have_the_same_columns(url: str, backend: Backend, postgres_url: str) -> None:
    other = open_backend(postgres_url)
    other.migrate()
    for table in TABLES:
        assert set(shape_of(backend, table).columns) == set(shape_of(other, table).columns), table.name
    other.close()


def test_one_connection_to_a_server_reads_all_tables_one_after_another(shared_url: str, cold: None) -> None:
    with closing(open_backend(shared_url)) as backend, patch.object(Connector, "connect", autospec=True) as connect:
        connect.side_effect = connect_to_the_server
        for table in TABLES:
            rows_of(backend, table)
        with pytest.raises(MoveError):
            backend.transfer.reading(refuse)
        backend.transfer.census()

    assert connect.call_count == 1


connect_to_the_server = Connector.connect


def refuse(*_: object) -> None:
    raise MoveError("not these")


def test_rows_are_read_in_the_order_of_their_key_a_portion_at_a_time(world: World) -> None:
    made = sorted(world.enqueue() for _ in range(250))
    portions = rows_of(world.backend, BY_NAME["jobs"], Portion(rows=100))
    assert [len(rows) for rows in portions] == [100, 100, 50]
    assert [row[0] for row in chain.from_iterable(portions)] == made


def test_large_rows_make_small_portions(world: World) -> None:
    for _ in range(300):
        world.enqueue(args=f'"{"x" * 5_000}"')
    sizes = [len(rows) for rows in rows_of(world.backend, BY_NAME["jobs"], Portion(rows=1_000, size=100_000))]
    assert sizes == [100, 100, 100]


def test_names_come_in_the_order_of_their_bytes(world: World) -> None:
    for name in ("b", "B", "a.x", "a-x", "Z", "_"):
        world.backend.queues.upsert(name, 1)
    found = [row[0] for row in chain.from_iterable(rows_of(world.backend, BY_NAME["queues"]))]
    assert found == sorted(found)
    assert len(found) == 6


# Closed


@contextmanager
def connected(url: str) -> Generator[Callable[[str], Any]]:
    """A program that has been connected for a long time."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            yield connection.execute
        return
    server, _, schema = url.rpartition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"'.encode())
        yield lambda text: connection.execute(text.encode())


ONE_AT_A_TIME = {Kind.LIMIT: (Bound(1),)}
CHANGES: dict[str, Callable[[World, str], object]] = {
    "enqueue": lambda world, _: world.enqueue(),
    "enqueue many": lambda world, _: world.backend.jobs.enqueue([world.new() for _ in range(60)]),
    "cancel": lambda world, job: world.backend.jobs.cancel([job]),
    "delete": lambda world, job: world.backend.jobs.delete([job]),
    "register": lambda world, _: world.worker(),
    "set a queue": lambda world, _: world.backend.queues.upsert("mail", 3),
    "pause a queue": lambda world, _: world.backend.queues.pause("default"),
    "set a limit": lambda world, _: world.backend.limits.say("task", "task", Source.DECLARED, ONE_AT_A_TIME),
    "take a duty": lambda world, _: world.backend.leases.take("prune", world.ids.new()),
    "set a schedule": lambda world, _: world.backend.schedules.upsert(
        Schedule("b", "task", None, "{}", None, HOUR, "UTC", "last", 9, "skip", None, 1, 1, 1, 1, None)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_closed_database_refuses_every_change_and_says_why(world: World, change: Any) -> None:
    job = world.enqueue()
    world.backend.transfer.leave("{}", "has 'moved' to elsewhere", allow)
    with pytest.raises(DatabaseClosed, match="has 'moved' to elsewhere"):
        change(world, job)
    assert [found.id for found in world.backend.jobs.newest()] == [job]
    world.backend.transfer.come_back('{"id": "another"}')
    with pytest.raises(DatabaseClosed):
        world.enqueue()
    world.backend.transfer.come_back("{}")
    change(world, job)


def test_programs_that_were_connected_before_are_refused_too(url: str, world: World) -> None:
    with connected(url) as prompt:
        job = world.enqueue()
        prompt(f"UPDATE dray_jobs SET name = 'one' WHERE id = '{job}'")
        world.backend.transfer.leave("{}", "has moved", allow)
        for text in ("UPDATE dray_jobs SET name = 'two'", "DELETE FROM dray_jobs", "DELETE FROM dray_queues"):
            with pytest.raises((sqlite3.Error, psycopg.Error), match="has moved"):
                prompt(text)
        assert world.job(job).name == "one"


def test_a_claim_that_was_held_before_cannot_be_settled(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    claim = world.claim_one(worker)
    world.backend.transfer.leave("{}", "has moved", allow)
    with pytest.raises(DatabaseClosed, match="has moved"):
        world.complete(worker, claim)
    with pytest.raises(DatabaseClosed):
        world.backend.workers.beat(worker, LEASE_US)
    assert world.job(claim.id).state == "running"


def test_a_user_s_transaction_is_refused_too_and_stays_usable(url: str, world: World) -> None:
    world.enqueue()
    world.backend.transfer.leave("{}", "has moved", allow)
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(path_of(url))
    else:
        connection = psycopg.connect(url.rpartition("&schema=")[0])
    with closing(connection):
        with pytest.raises(DatabaseClosed, match="has moved"):
            world.backend.jobs.enqueue([world.new()], connection=connection)
        connection.commit()


def test_tables_that_are_behind_are_not_upgraded_while_they_are_closed(url: str, world: World) -> None:
    world.backend.transfer.leave("{}", "has moved", allow)
    sql(url, "UPDATE dray_meta SET value = '0' WHERE name = 'version'")
    with pytest.raises(DatabaseClosed, match="has moved"):
        world.backend.migrate()


def test_a_refused_closing_leaves_everything_open(world: World) -> None:
    world.worker()

    def refuse(in_use: transfer.InUse) -> None:
        assert len(in_use.alive) == 1
        raise MoveError("somebody works here")

    with pytest.raises(MoveError, match="somebody works here"):
        world.backend.transfer.leave("{}", "has moved", refuse)
    world.enqueue()
    assert set(world.backend.transfer.facts()) == {"version", "oldest_code"}


def test_only_those_who_hold_the_mark_write_to_a_database_that_is_being_filled(world: World) -> None:
    target = world.backend.transfer
    queues = BY_NAME["queues"]
    shape = shape_of(world.backend, queues)
    first = Mark("1", "elsewhere", "first")
    target.begin(first, "is being filled", allow)
    reached = replace(first, reached={"queues": ("a",)})
    given = {"name": "a", "priority": 1, "paused_at": None, "created_at": world.clock.now()}
    rows = [tuple(given[name] for name in shape.columns)]
    target.mend(first, reached, shape, Repair(rows, (), ()))
    target.mend(first, reached, shape, Repair(rows, (), ()))  # repeated, because its response was lost
    second = replace(reached, mover="second")
    target.take_over(reached, second)
    with pytest.raises(MoveError, match="another"):
        target.mend(reached, reached, shape, Repair((), (), [("a",)]))
    assert rows_of(world.backend, queues) == [rows]
    with pytest.raises(DatabaseClosed, match="is being filled"):
        world.enqueue()
    target.finish(second, "{}", None)
    world.enqueue()


def test_a_database_with_a_job_in_it_is_not_filled(world: World) -> None:
    world.enqueue()
    with pytest.raises(MoveError, match="a job has been enqueued"):
        world.backend.transfer.begin(Mark("1", "elsewhere", "first"), "is being filled", allow)
    world.enqueue()


def test_rows_are_mended_and_removed_by_their_keys(world: World) -> None:
    jobs = BY_NAME["jobs"]
    shape = shape_of(world.backend, jobs)
    place = {name: shape.columns.index(name) for name in shape.columns}
    first, second, third = (world.enqueue(unique_key=key, args='"\\u0000"') for key in ("a", "b", "c"))
    there = list(chain.from_iterable(rows_of(world.backend, jobs)))
    rows = {row[0]: list(row) for row in there}
    world.backend.jobs.delete(list(rows))
    # The second has the values of the first, the third is gone, and the arguments have grown.
    rows[first][place["unique_lock"]] = None
    rows[second][place["unique_lock"]] = "a"
    rows[second][place["args"]] = '"' + "ü\\u0000" * 1_000 + '"'
    rows[second][place["timeout"]] = 0.1
    rows[second][place["fanout_pending"]] = 1
    mark = Mark("1", "elsewhere", "first")
    world.backend.transfer.begin(mark, "is being filled", allow)
    world.backend.transfer.mend(mark, mark, shape, Repair(there, (), ()))
    wanted = [tuple(rows[each]) for each in (second, first)]
    world.backend.transfer.mend(mark, mark, shape, Repair((), wanted, [(third,)]))
    assert list(chain.from_iterable(rows_of(world.backend, jobs))) == sorted(wanted)
    assert [job.id for job in world.backend.jobs.newest()] == [second, first]
    assert world.job(second).args == rows[second][place["args"]]


def test_rollups_are_carried_and_removed_by_minute_queue_and_task(world: World) -> None:
    rollups = BY_NAME["rollups"]
    minutes = {n * MINUTE: {Part("mail", task, "failed"): Tally(n)} for n in (1, 2) for task in ("Ä", "a", "B")}
    world.backend.rollups.write(minutes, [0], 3 * MINUTE)
    rows = list(chain.from_iterable(rows_of(world.backend, rollups)))
    shape, mark = shape_of(world.backend, rollups), Mark("1", "elsewhere", "first")
    world.backend.transfer.begin(mark, "is being filled", allow)
    emptied, until = rows_of(world.backend, rollups), world.backend.rollups.mark()
    world.backend.transfer.mend(mark, mark, shape, Repair(rows, (), ()))
    filled = list(chain.from_iterable(rows_of(world.backend, rollups)))
    world.backend.transfer.mend(mark, mark, shape, Repair((), (), [shape.key_of(row) for row in rows[1:]]))

    assert (emptied, until, filled) == ([], None, rows)
    assert [shape.key_of(row) for row in rows] == sorted(shape.key_of(row) for row in rows)
    assert list(chain.from_iterable(rows_of(world.backend, rollups))) == rows[:1]


# Whole databases


class Moving(Machine):
    """Moves the database that the state machine has produced, from each database into the other."""

    empty: ClassVar[Iterator[tuple[str, str]]]  # addresses of SQLite files and schemas
    url: str  # of the machine's PostgreSQL
    moved: ClassVar[Counter[str]] = Counter()  # rows by table

    def all_tables_are_the_same(self) -> None:
        """Not after each step: the other test does that."""

    def teardown(self) -> None:
        lines = [LogLine(claim.id, claim.claim, 1, "INFO", "shop", "words ü") for _, claim in self.claims]
        for side in (self.sides.sqlite, self.sides.postgres):
            for worker in self.workers:
                verbs.write_logs(side, worker, lines)
        self.clock.advance(2 * LEASE_US)  # all workers are gone
        self.check(self.sides.sqlite, f"sqlite:///{self.sides.sqlite.db.place}", next(self.empty)[1])
        self.check(self.sides.postgres, self.url, next(self.empty)[0])

    def check(self, source: Backend, source_url: str, target_url: str) -> None:
        before = everything(source_url)
        target = open_backend(target_url, clock=self.clock, create=False)
        plan = move_plan.plan(move.Side(source, source_url), move.Side(target, target_url), force=True)
        with patch.object(target.workers, "rescue", return_value=[]):  # comes later
            done = move.carry(plan, portion=Portion(rows=7))
        assert everything(target_url) == before == everything(source_url)
        assert done.rows == {name: len(rows) for name, rows in before.items()}
        self.moved.update(done.rows)
        target.close()
        source.transfer.come_back(source.transfer.facts()[MOVE])


def test_whatever_the_machine_has_made_is_the_same_after_a_move(
    sides: Sides, postgres_server: str, postgres_url: str, tmp_path: Path
) -> None:
    schemas = [f"{sides.schema}_{number}" for number in range(100)]
    Machine.sides, Moving.url = sides, postgres_url
    Moving.empty = iter([(f"sqlite:///{tmp_path / name}.db", f"{postgres_server}&schema={name}") for name in schemas])
    try:
        run_state_machine_as_test(
            Moving,
            settings=settings(
                max_examples=6,
                stateful_step_count=80,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
    finally:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())
    assert Moving.moved["jobs"] > 20
