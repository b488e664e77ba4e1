"""What `manage.py check` says of Dray's settings."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own name

from dray.errors import ConfigError
from dray.integrations.django.addresses import connection_of, is_in_memory
from dray.integrations.django.options import LOCATION, check_tasks, checked_settings, database_of

_OF_TESTS = "file:memorydb_"  # what Django calls a test's database in memory, where no worker is wanted


def problems(alias: str) -> Generator[CheckMessage]:
    """Reads settings, and opens nothing."""
    try:
        settings = checked_settings(alias)
        check_tasks(alias)
        database = connection_of(database_of(alias))
    except (ConfigError, TypeError, ValueError) as error:
        yield Error(f"TASKS[{alias!r}]: {error}", id="dray.E001")
        return
    if not apps.is_installed(LOCATION):
        yield Warning(
            f"TASKS[{alias!r}] is Dray's, but INSTALLED_APPS has no {LOCATION!r}: `migrate` makes no tables for "
            "jobs, and manage.py has no dray_worker.",
            hint=f"Add {LOCATION!r} to INSTALLED_APPS.",
            id="dray.W004",
        )
    if database.vendor == "sqlite":
        yield from _sqlite(alias, database)
    elif settings.listen_url is None and database.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Warning(
            f"DATABASES[{database.alias!r}] seems to lead to a pooler, which delivers no notifications: jobs wait "
            "until a worker looks.",
            hint="Set OPTIONS['listen_url'] to an address around the pooler.",
            id="dray.W003",
        )


def _sqlite(alias: str, database: Any) -> Generator[CheckMessage]:
    if str(database.settings_dict["NAME"]).startswith(_OF_TESTS):
        return
    if is_in_memory(database):
        yield Warning(
            f"TASKS[{alias!r}] uses DATABASES[{database.alias!r}], a SQLite in memory: no worker reaches it.",
            hint="Give NAME a file. In tests it works: dray.testing.drain(app) runs the jobs in the test.",
            id="dray.W001",
        )
        return
    mode = database.settings_dict["OPTIONS"].get("transaction_mode")
    if str(mode).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
        yield Warning(
            f"DATABASES[{database.alias!r}] begins transactions as DEFERRED: one that reads first and then enqueues "
            "fails at once if another connection has written in between.",
            hint=f"DATABASES[{database.alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}",
            id="dray.W002",
        )
