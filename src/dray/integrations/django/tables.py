"""Dray's tables in Django's migrations: made on the connection that migrates, in its transaction."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation
from django.db.transaction import Atomic

from dray.integrations.django.addresses import connection_of, is_in_memory
from dray.integrations.django.core import backends
from dray.integrations.django.options import database_of, drays_aliases

LABEL = "dray"  # of the application


class MakeTables(Operation):
    """Makes or upgrades the tables. The reverse leaves them, and the jobs in them, where they are."""

    reduces_to_sql = False
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """There is no model of them."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:  # noqa: ARG002
        make_on(schema_editor.connection)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """A second `migrate` finds them again."""

    def describe(self) -> str:
        return "Makes Dray's tables"


def homes() -> dict[str, str]:
    """The aliases of DATABASES that have jobs, each with an alias of TASKS that says so."""
    return {database_of(alias): alias for alias in reversed(drays_aliases() or ["default"])}


def make_on(connection: Any) -> None:
    """Makes or upgrades the tables in this database, if jobs go there."""
    alias = homes().get(connection.alias)
    if alias is None or not router.allow_migrate(connection.alias, LABEL):
        return
    with Atomic(connection.alias, savepoint=True, durable=False):
        backends.of(alias).init(connection=connection.connection)


def after_migrate(sender: Any, using: str, **given: Any) -> None:
    """After `migrate`: upgrades the tables, also where migrations are not run. After `flush`: removes the jobs.

    Connections are closed then, so that a test database can be removed or copied.
    """
    alias = homes().get(using)
    if alias is None or not router.allow_migrate(using, LABEL):
        return
    app, connection = backends.of(alias), connection_of(using)
    backend = app.core.backend
    if "plan" in given and sender.label == LABEL:  # of `migrate`; `flush` has none
        make_on(connection)
    if backend.schema_version() is None:
        return
    if "plan" not in given and sender.label == LABEL:
        backend.transfer.clear()
    if backend.upkeep is not None and not is_in_memory(connection) and not connection.in_atomic_block:
        # Into the main file, after each app's rows: ``test --parallel`` copies that alone, without the log beside it.
        backend.upkeep.checkpoint(waits=True)
    app.close()
