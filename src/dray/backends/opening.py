"""Opens the backend for an address."""

from __future__ import annotations

from dray.address import SqliteAddress, parse_address
from dray.backends.base import Backend
from dray.backends.sqlite import SqliteDatabase
from dray.clock import Clock
from dray.errors import ConfigError


def open_backend(
    url: str,
    *,
    clock: Clock | None = None,
    busy_timeout: float = 30.0,
    file_mode: int = 0o600,
    create: bool | None = None,
    notify: bool = True,
    listen_url: str | None = None,
) -> Backend:
    """The backend for an address; connects at the first call.

    `create`: make missing tables at the first call. By default a SQLite file does, and a PostgreSQL database waits
    for `migrate()`. `notify`: wake workers when a user's own transaction commits; on PostgreSQL this is a NOTIFY
    inside it, which such commits then do one after the other, and which cannot be prepared (two-phase commit).
    `listen_url`: a way to the same PostgreSQL around its pooler, which would not deliver notifications.
    """
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        return Backend(
            SqliteDatabase(
                address.path,
                clock=clock,
                busy_timeout=busy_timeout,
                file_mode=file_mode,
                create=create is not False,
            )
        )
    # psycopg costs 200 ms and 20 MB to import: only those pay who use PostgreSQL.
    try:
        from dray.backends.postgres import PostgresDatabase  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs psycopg 3: pip install 'dray[postgres]'") from error

    return Backend(
        PostgresDatabase(
            address,
            clock=clock,
            busy_timeout=busy_timeout,
            create=bool(create),
            notify=notify,
            listen_url=listen_url,
        )
    )
