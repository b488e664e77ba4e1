"""Creating the tables in a separate database without a separate schema."""

from __future__ import annotations

import threading

import psycopg

from dray.backends import open_backend
from tests.server import in_database


def test_many_who_make_the_tables_at_once_do_not_stumble_over_each_other(postgres_server: str) -> None:
    name = "dray_tables_at_once"
    url = in_database(postgres_server, name)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    together = threading.Barrier(6)
    versions: list[int | None] = []

    def make() -> None:
        backend = open_backend(url, create=True)
        together.wait(30)
        backend.jobs.newest()
        versions.append(backend.schema_version())
        backend.close()

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(versions) == 6
    assert len(set(versions)) == 1
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
