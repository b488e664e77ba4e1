"""``dray workers``: who runs jobs, and who did."""

from __future__ import annotations

from typing import Any

import click

from dray.cli import shapes
from dray.cli.output import Column, Shape, put_list, relative, short
from dray.cli.shared import app_on_tables, option, shared


def _queues(value: Any, _: Shape) -> str:
    return ",".join(value) or "all"


_COLUMNS = (
    Column("id", "id", short),
    Column("name", "name", is_elastic=True, rank=1),
    Column("state", "state"),
    Column("pid", "pid", is_number=True, rank=2),
    Column("queues", "queues", _queues, is_elastic=True, rank=3),
    Column("bodies", "concurrency", is_number=True, rank=5),
    Column("duties", "duties", is_elastic=True, rank=6),
    Column("started", "started_at", relative, rank=4),
    Column("seen", "last_seen_at", relative, rank=1),
)
_KEYS = (
    *("id", "name", "state", "host", "pid", "queues", "concurrency", "duties"),
    *("started_at", "last_seen_at", "stopped_at", "tasks"),
)


@click.command()
@option("--all", "everyone", is_flag=True, help="Also those that have ended.")
@shared
def workers(*, everyone: bool) -> None:
    """List workers that live.

    In a pipe: id, name, state, host, pid, queues, concurrency, duties, started_at, last_seen_at, stopped_at, tasks.
    """
    found: list[dict[str, Any]] = [shapes.worker(worker) for worker in app_on_tables().workers()]
    live = [shape for shape in found if shape["stopped_at"] is None and shape["state"] != "dead"]
    put_list(found if everyone else live, _COLUMNS, _KEYS, "no worker is alive; start one with `dray worker`")
