"""``dray tasks`` and ``dray workers``: what the app can do, and who runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

import dray
from dray.app_interface import core_of
from dray.cli.apps import app_on_tables, app_with_tasks, known_task
from dray.cli.cells import Shape, queues, relative, seconds, short
from dray.cli.options import command, option, wants_json
from dray.cli.output import Column, put_json, put_list
from dray.errors import ConfigError, StorageError
from dray.ops import shapes
from dray.ops import tasks as ops
from dray.ops.listing import WorkerInfo
from dray.wording import interval

_PATIENCE = 2.0  # seconds for a database that may not exist


def _rule(value: Any, shape: Shape) -> str:
    if value is None:
        return "" if shape["every"] is None else f"every {interval(shape['every'])}"
    return value if shape["tz"] == "UTC" else f"{value} {shape['tz']}"


_COLUMNS = (
    Column("task", "name", is_elastic=True),
    Column("queue", "queue", rank=2),
    Column("runner", "runner", rank=4),
    Column("attempts", "max_attempts", is_number=True, rank=5),
    Column("timeout", "timeout", seconds, rank=6),
    Column("retry", "retry", is_elastic=True, rank=7),
    Column("schedule", "cron", _rule, is_elastic=True, rank=3),
    Column("workers", "workers", lambda ids, _: "" if ids is None else str(len(ids)), is_number=True, rank=3),
    Column("", "description", is_elastic=True, rank=1),
)
_KEYS = "name queue priority runner max_attempts max_crashes timeout retry cron every tz workers description"


@command()
@click.argument("names", nargs=-1, metavar="[TASK...]")
@option("--schema", is_flag=True, help="JSON Schema of their arguments.")
def tasks(names: Sequence[str], *, schema: bool) -> None:
    """List the tasks of the app, or the named ones; no database is needed.

    In a pipe: name, queue, priority, runner, max_attempts, max_crashes, timeout, retry, cron, every, tz, workers (the
    ids of live ones that know it), description. --schema without --json prints an object of schemas by name.
    """
    app = app_with_tasks()
    chosen = [known_task(app, name) for name in dict.fromkeys(names)] or list(core_of(app).registry)
    schemas = {task.name: ops.argument_schema(task) for task in chosen} if schema else {}
    if schema and not wants_json():
        put_json(schemas)
        return
    found = ops.tasks(chosen, _live_workers(app))
    if schema:
        found = [{**shape, "schema": schemas[shape["name"]]} for shape in found]
    put_list(found, _COLUMNS, "no tasks; decorate a function with @app.task", _KEYS)


def _live_workers(app: dray.App) -> list[WorkerInfo] | None:
    """Returns the live workers; None without a database, or if it cannot be reached."""
    core_of(app).change_settings(migrate=False, busy_timeout=_PATIENCE)
    try:
        found = app.workers()
    except (StorageError, ConfigError):
        return None
    return [worker for worker in found if _is_live(worker)]


def _is_live(worker: WorkerInfo) -> bool:
    return worker.stopped_at is None and worker.state != "dead"


_WORKER_COLUMNS = (
    Column("id", "id", short),
    Column("name", "name", is_elastic=True, rank=1),
    Column("state", "state"),
    Column("pid", "pid", is_number=True, rank=2),
    Column("queues", "queues", queues, is_elastic=True, rank=3),
    Column("bodies", "concurrency", is_number=True, rank=5),
    Column("duties", "duties", is_elastic=True, rank=6),
    Column("started", "started_at", relative, rank=4),
    Column("seen", "last_seen_at", relative, rank=1),
)
_WORKER_KEYS = "id name state host pid queues concurrency duties started_at last_seen_at stopped_at tasks"


@command()
@option("--all", "everyone", is_flag=True, help="Also workers that have ended.")
def workers(*, everyone: bool) -> None:
    """List the live workers.

    In a pipe: id, name, state, host, pid, queues, concurrency, duties, started_at, last_seen_at, stopped_at, tasks.
    """
    found = app_on_tables().workers()
    shown = [shapes.worker(worker) for worker in found if everyone or _is_live(worker)]
    put_list(shown, _WORKER_COLUMNS, "no worker is alive; start one with `dray worker`", _WORKER_KEYS)
