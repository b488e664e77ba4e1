"""Dray's errors as Django's: a view catches the one, and need not know the other."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, ProgrammingError

from dray.errors import (
    ConfigError,
    FileMissing,
    InvalidName,
    PayloadError,
    PayloadTooLarge,
    SchemaMissing,
    StorageError,
    StorageLocked,
)
from dray.integrations.django import addresses, joining

if TYPE_CHECKING:
    from dray.integrations.django.core import DjangoCore


@contextmanager
def translated(core: DjangoCore) -> Generator[None]:
    """Raises what Django's own layers would raise in such a case."""
    try:
        yield
    except PayloadTooLarge as error:
        raise ValueError(str(error)) from error
    except PayloadError as error:  # what `normalize_json` lets pass: NaN, keys that are no text
        raise TypeError(f"Unsupported value: {error}") from error
    except (SchemaMissing, FileMissing) as error:
        raise ProgrammingError(f"{error}; {core.tables_hint}") from error
    except InvalidName:
        raise
    except ConfigError as error:
        raise ImproperlyConfigured(f"TASKS[{core.alias!r}]: {error}") from error
    except StorageLocked as error:
        raise OperationalError(_locked(core, str(error))) from error
    except StorageError as error:
        raise OperationalError(str(error)) from error


def _locked(core: DjangoCore, text: str) -> str:
    alias = core.database
    django = addresses.connection_of(alias)
    if django.vendor == "sqlite" and joining.is_open(django) and getattr(django, "transaction_mode", None) is None:
        return (
            f"the job was not enqueued: this transaction has read, and another connection has written since, so "
            f"SQLite refuses its writes. Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE', or "
            f"begin again ({text})"
        )
    return text
