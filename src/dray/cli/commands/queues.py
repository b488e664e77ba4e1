"""``dray queues``: what is in the queues, and which are paused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

import dray
from dray.cli import shapes
from dray.cli.apps import app_on_tables
from dray.cli.exits import say
from dray.cli.options import option, shared
from dray.cli.output import BESIDE_STATES, STATES, Column, Shape, put_list, relative, state_columns
from dray.model.values import check_name


def _paused(value: Any, shape: Shape) -> str:
    return f"paused {relative(value, shape)}" if value else ""


_COLUMNS = (
    Column("queue", "name", is_elastic=True),
    Column("priority", "priority", is_number=True, rank=BESIDE_STATES),
    Column("", "paused_at", _paused),
)


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List, pause, resume and set queues.

    In a pipe: name, priority, paused_at, and the number of waiting, scheduled, queued, running, completed, failed
    and cancelled jobs.
    """
    if ctx.invoked_subcommand is None:
        _put(app_on_tables())


def _put(app: dray.App, only: Sequence[str] | None = None) -> None:
    found = [shapes.queue(queue) for queue in app.queues() if only is None or queue.name in only]
    put_list(found, (*_COLUMNS, *state_columns(found)), ("name", "priority", "paused_at", *STATES), "no queues")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@shared
def pause(names: Sequence[str]) -> None:
    """Start no more jobs of these queues; running jobs go on."""
    _each(names, lambda app, name: app.pause(name), "was paused already")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@shared
def resume(names: Sequence[str]) -> None:
    """Let paused queues go on."""
    _each(names, lambda app, name: app.resume(name), "was not paused")


def _each(names: Sequence[str], act: Callable[[dray.App, str], bool], otherwise: str) -> None:
    for name in names:
        check_name("queue", name)
    app = app_on_tables()
    known = {queue.name for queue in app.queues()}
    for name in names:
        if not act(app, name):
            say(f"queue {name} {otherwise}")
        elif name not in known:
            say(f"queue {name} has not been used so far")
    _put(app, names)


@queues.command(name="set")
@click.argument("name", metavar="QUEUE")
@option("--priority", type=int, required=True, help="Of new jobs without a priority of their own; higher runs first.")
@shared
def set_(name: str, priority: int) -> None:
    """Change the settings of a queue."""
    app = app_on_tables()
    app.queue(name, priority=priority)
    _put(app, [name])
