"""PostgreSQL's errors as Dray's, and which of them are worth another try."""

from __future__ import annotations

import psycopg

from dray.backends.database import DataRefused
from dray.backends.migrate import command
from dray.errors import (
    DatabaseClosed,
    DrayError,
    SchemaMissing,
    StorageError,
    StorageFull,
    StorageLocked,
    StorageUnavailable,
)
from dray.sanitize import escape_control, redact

_CONFLICT = {"40001", "40P01"}  # serialization failure, deadlock
_UNPREPARED = {"42P05", "26000"}  # a prepared statement is there already, or is gone
_CLOSED = "DRAY1"  # said by our own trigger: a move has closed the tables
# Now a replica; idle in a transaction, or in it, for too long; shutting down; crashed; starting; idle for too long.
_GONE = {"25006", "25P03", "25P04", "57P01", "57P02", "57P03", "57P05"}


def is_conflict(error: psycopg.Error) -> bool:
    """Two transactions got in each other's way: the same again will do."""
    return error.sqlstate in _CONFLICT


def is_unprepared(error: psycopg.Error) -> bool:
    """Prepared statements do not last here: a pooler mixes sessions, or another program deallocates them."""
    return error.sqlstate in _UNPREPARED


def is_lost(error: psycopg.Error) -> bool:
    """The connection is gone, or leads to a server that cannot write: a new one may do."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state in _GONE or state.startswith("08")


def translate(error: psycopg.Error, place: str) -> DrayError:
    """The error to raise for an error of the driver."""
    said = escape_control(redact(str(error).strip().partition("\n")[0]))  # it may quote a value: a body's words
    kind, text = _sentence(error)
    return kind(f"{place}: {text.format(said=said, init=command('init', place))}")


def _sentence(error: psycopg.Error) -> tuple[type[DrayError], str]:
    state = error.sqlstate or ""
    if state in _SENTENCES:
        return _SENTENCES[state]
    if state[:2] in {"22", "23"} or isinstance(error, psycopg.DataError):
        return DataRefused, "{said}"
    if is_conflict(error):
        return StorageLocked, _IN_THE_WAY
    if is_lost(error) or state[:2] in {"28", "3D", "53"}:
        return StorageUnavailable, "cannot be reached: {said}; check the address and the server"
    return StorageError, "{said}"


_IN_THE_WAY = "another transaction stood in the way ({said}); nothing was written"
_MISSING = (SchemaMissing, "Dray's tables are missing or too old ({said}); call app.init() once, or run {init}")
_SENTENCES: dict[str, tuple[type[DrayError], str]] = {
    _CLOSED: (DatabaseClosed, "{said}"),
    "42P01": _MISSING,  # no such table
    "3F000": _MISSING,  # no such schema
    "42703": _MISSING,  # no such column
    "42501": (
        StorageError,
        "{said}; have the owner of the tables do it ({init}, or what `dray db sql` prints), or grant it",
    ),
    "53100": (StorageFull, "the server's disk is full; nothing of this call was written"),
    "55P03": (StorageLocked, _IN_THE_WAY),
}
