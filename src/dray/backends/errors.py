"""Errors that stay inside the storage layer."""

from __future__ import annotations

from dray.errors import StorageError


class DataRefused(StorageError):
    """The database refused the values of a write (a constraint, a type, a size), not the write itself."""


class TookTooLong(StorageError):
    """A look at the database was ended before it was over; nothing is known."""
