from __future__ import annotations

import psycopg

from tests.schemas import TABLES, Schemas


def test_a_schema_is_used_again(schemas: Schemas) -> None:
    """A new one for each test takes a hundred times as long, and nothing else shows it."""
    taken = schemas.take()
    schemas.give_back(taken)
    again = schemas.take()
    schemas.give_back(again)

    assert again == taken


def test_every_table_is_emptied_for_the_next_test(schemas: Schemas, postgres_server: str) -> None:
    schema = schemas.take()
    with psycopg.connect(postgres_server) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    schemas.give_back(schema)

    assert {name for (name,) in found} == {*TABLES, "dray_meta"}
