"""``dray queues``: what is in them, and which are paused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dray.cli import shapes
from dray.cli.exits import say
from dray.cli.output import Column, Shape, put_list, relative
from dray.cli.shared import app_on_tables, option, shared
from dray.cli.states import BESIDE, STATES, state_columns
from dray.model.values import check_name

if TYPE_CHECKING:
    from dray.app import App


def _paused(value: Any, shape: Shape) -> str:
    return f"paused {relative(value, shape)}" if value else ""


_COLUMNS = (
    Column("queue", "name", is_elastic=True),
    Column("priority", "priority", is_number=True, rank=BESIDE),
    Column("", "paused_at", _paused),
)


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def queues(ctx: click.Context) -> None:
    """List, pause, resume and set queues.

    In a pipe: name, priority, paused_at, and how many are waiting, scheduled, queued, running, completed, failed and
    cancelled.
    """
    if ctx.invoked_subcommand is None:
        _put(app_on_tables())


def _put(app: App, only: Sequence[str] | None = None) -> None:
    found = [shapes.queue(queue) for queue in app.queues() if only is None or queue.name in only]
    put_list(found, (*_COLUMNS, *state_columns(found)), ("name", "priority", "paused_at", *STATES), "no queues")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@shared
def pause(names: Sequence[str]) -> None:
    """Start no more jobs of these queues; those that run go on."""
    _each(names, lambda app, name: app.pause(name), "was paused already")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@shared
def resume(names: Sequence[str]) -> None:
    """Let paused queues go on."""
    _each(names, lambda app, name: app.resume(name), "was not paused")


def _each(names: Sequence[str], act: Callable[[App, str], bool], otherwise: str) -> None:
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
@option("--priority", type=int, required=True, help="Of jobs to come that name none; higher runs first.")
@shared
def set_(name: str, priority: int) -> None:
    """Change a queue."""
    app = app_on_tables()
    app.queue(name, priority=priority)
    _put(app, [name])
