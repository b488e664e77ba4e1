"""What a PostgreSQL server can tell of how it stores the tables. It checks its pages itself, if it was made to."""

from __future__ import annotations

import logging
from typing import NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from dray.backends import ddl
from dray.backends.postgres.adapt import Connection
from dray.backends.postgres.session import PostgresSession

log = logging.getLogger("dray")


class Look(NamedTuple):
    """What the catalogue tells, and what to look into further."""

    problems: list[str]
    indexes: dict[str, int]  # valid ones, and their oids
    extension: str | None  # the schema of amcheck, where it is installed


def look(tx: PostgresSession, table: str) -> Look:
    namespace = tx.rows("table_namespace", table=table)[0][0]
    indexes = tx.rows("check_indexes", namespace=namespace)
    loose = tx.rows("check_constraints", namespace=namespace)
    there = {row[0] for row in tx.rows("check_names", namespace=namespace)}
    problems = [
        *(
            f"index {name} was never finished and is not used; REINDEX it"
            for name, _, is_used in indexes
            if not is_used
        ),
        *(f"constraint {name} of {table} was never validated" for table, name in loose),
        *(f"{name} is missing" for name in sorted(ddl.names("postgres") - there)),
    ]
    extension = tx.rows("check_extension")
    return Look(
        problems, {name: oid for name, oid, is_used in indexes if is_used}, extension[0][0] if extension else None
    )


def look_into(connection: Connection, found: Look, *, full: bool) -> list[str]:
    """What amcheck finds in the indexes; it keeps nobody from writing. Full: every row has to be in them, too."""
    assert found.extension is not None
    check = SQL("SELECT {}.bt_index_check(CAST(%s AS oid), %s)").format(Identifier(found.extension))
    problems: list[str] = []
    for name, oid in found.indexes.items():
        try:
            connection.execute(check, (oid, full))
        except psycopg.errors.InsufficientPrivilege:
            log.warning("amcheck is installed, but this user may not use it; the indexes were not looked into")
            return problems
        except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
            problems.append(f"index {name} is damaged ({str(error).strip().partition(chr(10))[0]}); REINDEX it")
    return problems
