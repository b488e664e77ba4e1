"""Removes a schema that was made to try something out."""

from __future__ import annotations

import psycopg
from psycopg.sql import SQL, Identifier

from dray.backends.postgres import faults
from dray.sanitize import redact


def drop_schema(conninfo: str, schema: str) -> None:
    """Drops a schema with all that is in it, if it is there."""
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("SET client_min_messages TO warning")  # not a word about each table
            connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))
    except psycopg.Error as error:
        raise faults.translate(error, redact(conninfo)) from error
