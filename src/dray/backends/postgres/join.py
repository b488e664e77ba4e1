"""A user's own connection, inside the transaction they have open: Dray's writes stand or fall with theirs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from dray.backends.postgres import faults
from dray.errors import ConfigError


@contextmanager
def joined(connection: object, place: str) -> Generator[psycopg.Connection[Any]]:
    """Keeps what happens inside to itself if it fails: the caller may go on and commit."""
    if not isinstance(connection, psycopg.Connection):
        raise ConfigError(f"connection= takes a psycopg.Connection for {place}, not {type(connection).__name__}")
    user = cast("psycopg.Connection[Any]", connection)
    if user.info.transaction_status == TransactionStatus.IDLE and user.autocommit:
        raise ConfigError("this connection is in autocommit mode: open a transaction first")
    try:
        user.execute("SAVEPOINT dray_join")
        try:
            yield user
        except BaseException:
            user.execute("ROLLBACK TO SAVEPOINT dray_join")
            raise
        finally:
            user.execute("RELEASE SAVEPOINT dray_join")
    except psycopg.Error as error:
        raise faults.translate(error, place) from error
