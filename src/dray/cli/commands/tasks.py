"""``dray tasks``: what the app can do, with which options, and who is there to do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from dray.cli.output import Column, Shape, put_json, put_list
from dray.cli.shared import app_with_tasks, known_task, load_tasks, option, shared, wants_json
from dray.cli.times import span

if TYPE_CHECKING:
    from dray.app import App
    from dray.ops import WorkerInfo

_PATIENCE = 2.0  # seconds for a database that need not be there


def _time(value: Any, _: Shape) -> str:
    return "" if value is None else span(value)


def _rule(value: Any, shape: Shape) -> str:
    if value is None:
        return "" if shape["every"] is None else f"every {span(shape['every'])}"
    return value if shape["tz"] == "UTC" else f"{value} {shape['tz']}"


def _count(value: Any, _: Shape) -> str:
    return "" if value is None else str(len(value))


_COLUMNS = (
    Column("task", "name", is_elastic=True),
    Column("queue", "queue", rank=2),
    Column("runner", "runner", rank=4),
    Column("attempts", "max_attempts", is_number=True, rank=5),
    Column("timeout", "timeout", _time, rank=6),
    Column("retry", "retry", is_elastic=True, rank=7),
    Column("schedule", "cron", _rule, is_elastic=True, rank=3),
    Column("workers", "workers", _count, is_number=True, rank=3),
    Column("", "description", is_elastic=True, rank=1),
)
_KEYS = (
    *("name", "queue", "priority", "runner", "max_attempts", "max_crashes", "timeout", "retry"),
    *("cron", "every", "tz", "workers", "description"),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[TASK...]")
@option("--schema", is_flag=True, help="JSON Schema of their arguments.")
@shared
def tasks(names: Sequence[str], *, schema: bool) -> None:
    """List the tasks of the app, or those that are named; a database need not be there.

    In a pipe: name, queue, priority, runner, max_attempts, max_crashes, timeout, retry, cron, every, tz, workers (the
    ids of live ones that know it), description. --schema alone is an object of schemas by name.
    """
    from dray.ops import tasks as ops  # noqa: PLC0415 - `dray tasks --help` needs none

    app = app_with_tasks()
    load_tasks(app)
    chosen = [known_task(app, name) for name in dict.fromkeys(names)] or list(app.registry)
    schemas = {task.name: ops.argument_schema(task) for task in chosen} if schema else {}
    if schema and not wants_json():
        put_json(schemas)
        return
    shapes: list[dict[str, Any]] = [asdict(info) for info in ops.tasks(chosen, _live_workers(app))]
    if schema:
        shapes = [{**shape, "schema": schemas[shape["name"]]} for shape in shapes]
    put_list(shapes, _COLUMNS, _KEYS, "no tasks; decorate a function with @app.task")


def _live_workers(app: App) -> list[WorkerInfo] | None:
    """None: there is no database, or none that answers."""
    from dray.errors import ConfigError, StorageError  # noqa: PLC0415

    app.settings = replace(app.settings, migrate=False, busy_timeout=_PATIENCE)
    try:
        found = app.workers()
    except (StorageError, ConfigError):
        return None
    return [worker for worker in found if worker.stopped_at is None and worker.state != "dead"]
