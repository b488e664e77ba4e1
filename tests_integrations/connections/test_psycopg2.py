"""psycopg2: the same, whatever a program has set on its connection."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

import dray
from dray.backends.postgres.foreign import _instant
from dray.errors import ConfigError, StorageError, StorageUnavailable
from dray.instants import FIRST_INSTANT, LAST_INSTANT
from dray.testing import drain
from tests_integrations.connections import kinds

Orders = Callable[[], list[object]]


@pytest.fixture
def connection(app: dray.App) -> Generator[Any]:
    opened = kinds.connect_psycopg2(app.url, cursor_factory=psycopg2.extras.RealDictCursor)
    yield opened
    opened.close()


def test_a_transaction_is_begun_and_left_open_for_the_program(app: dray.App, connection: Any) -> None:
    job = app.enqueue("mail", connection=connection)

    assert connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INTRANS
    assert app.jobs() == []
    connection.commit()
    assert [found.id for found in app.jobs()] == [job.id]


def test_cursors_and_types_of_the_programs_own_do_not_matter(app: dray.App, connection: Any) -> None:
    psycopg2.extras.register_uuid(conn_or_curs=connection)
    backwards = psycopg2.extensions.new_type((25, 1184, 23), "BACKWARDS", lambda text, _: text and text[::-1])
    psycopg2.extensions.register_type(backwards, connection)
    held = app.enqueue("first", unique="held", delay=60)

    again = app.enqueue("first", unique="held", connection=connection)
    app.enqueue("second", after=again, connection=connection)

    assert (again.id, again.duplicate) == (held.id, True)
    cursor = connection.cursor()
    cursor.execute("SELECT 'ab'::text AS a, id FROM dray_jobs WHERE task = 'first'")
    assert cursor.fetchall() == [{"a": "ba", "id": uuid.UUID(held.id)}]


def test_jobs_that_are_not_committed_run_in_its_transaction(app: dray.App, connection: Any, orders: Orders) -> None:
    @app.task(name="shop.order", max_attempts=2, retry=60)
    def order(ctx: dray.Context, n: int) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("again")
        with ctx.transaction() as tx:
            tx.cursor().execute("INSERT INTO orders (n) VALUES (%s)", (n,))
            tx.result = n

    order.using(connection=connection).enqueue(7)
    assert drain(app, connection=connection) == 2
    cursor = connection.cursor()
    cursor.execute("SELECT state, result FROM dray_jobs")
    assert cursor.fetchall() == [{"state": "completed", "result": "7"}]
    connection.rollback()

    assert (app.jobs(), orders()) == ([], [])


def test_values_that_postgresql_cannot_store_are_refused_and_the_transaction_goes_on(
    app: dray.App, connection: Any, orders: Orders
) -> None:
    for name in ("a\0b", "a\udc80b"):
        with pytest.raises(dray.DrayError):
            app.enqueue("mail", unique=name, connection=connection)
    connection.cursor().execute("INSERT INTO orders VALUES (1)")
    connection.commit()

    assert (app.jobs(), orders()) == ([], [1])


def test_closed_and_asynchronous_connections_are_refused(app: dray.App, connection: Any) -> None:
    connection.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        app.enqueue("mail", connection=connection)
    waits = kinds.connect_psycopg2(app.url, async_=1)
    psycopg2.extras.wait_select(waits)
    with pytest.raises(ConfigError, match=r"psycopg2\.connection cannot be used here"):
        app.enqueue("mail", connection=waits)
    waits.close()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01 00:00:00.5+00", 500_000),
        ("1970-01-01 05:30:01+05:30", 1_000_000),
        ("1892-01-01 00:00:00+00:19:32", -2461450772000000),
        ("infinity", LAST_INSTANT),
        ("12026-01-01 00:00:00+00", LAST_INSTANT),
        ("-infinity", FIRST_INSTANT),
        ("0044-03-15 12:00:00+00 BC", FIRST_INSTANT),
    ],
)
def test_times_are_read_to_the_microsecond(text: str, instant: int) -> None:
    assert _instant(text) == instant


def test_a_date_style_of_the_programs_own_is_told_of(app: dray.App, connection: Any) -> None:
    @app.task(name="shop.order")
    def order() -> None: ...

    order.using(connection=connection).enqueue()
    connection.cursor().execute("SET LOCAL datestyle TO 'German'")

    with pytest.raises(StorageError, match="DateStyle"):
        drain(app, connection=connection)
