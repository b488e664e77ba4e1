"""``dray limits``: how many jobs of a task or a queue run at the same time, and how many start in a while."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

import dray
from dray.app_interface import core_of
from dray.cli.apps import app_on_tables, person
from dray.cli.cells import Shape
from dray.cli.exits import did_you_mean, say
from dray.cli.options import Group, option
from dray.cli.output import Column, put_list
from dray.model.limit import RATE_KINDS, Bound, Kind, Scope, bounds_of
from dray.model.values import check_name
from dray.ops import acting, shapes

_NONE = "none"


def _running(limit: Any, shape: Shape) -> str:
    return str(shape["running"]) if limit is None else f"{shape['running']} of {limit}"


def _rates(rates: Any, shape: Shape) -> str:
    return ", ".join(f"{rate} ({shape['started'][rate]:,} now)" for rate in rates)


def _said(override: Any, shape: Shape) -> str:
    if not override:
        return "code"
    return "operator" if shape["declared"].keys() <= override.keys() else "operator, code"


_COLUMNS = (
    Column("", "scope"),
    Column("name", "name", is_elastic=True),
    Column("running", "limit", _running, is_number=True),
    Column("rate", "rate", _rates, is_elastic=True),
    Column("of a key", "key_limit", is_number=True, rank=1),
    Column("rate of a key", "key_rate", rank=2),
    Column("set by", "override", _said, rank=3),
)


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def limits(ctx: click.Context) -> None:
    """List, set and reset limits: how many jobs of a task or a queue run at once, and how often they start.

    In a pipe: scope, name, limit, rate, key_limit, key_rate, declared, override, running, started.
    """
    if ctx.invoked_subcommand is None:
        _put(app_on_tables())


def _put(app: dray.App, only: tuple[str, str] | None = None) -> None:
    found = [shapes.limit(info) for info in app.limits() if only is None or (info.scope, info.name) == only]
    nothing = "no limits; set one with app.queue(), @app.task or `dray limits set`"
    put_list(found, _COLUMNS, nothing if only is None else f"no limit of {' '.join(only)}")


def _number(value: str) -> int | str:
    """A whole number, or ``none``."""
    if value.strip().lower() == _NONE:
        return _NONE
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no whole number; write one, or none to lift the limit") from None


_scope_argument = click.argument("scope", type=click.Choice(["task", "queue"]), metavar="task|queue")


@limits.command(name="set")
@_scope_argument
@click.argument("name")
@option("--limit", type=_number, metavar="N", help="Run at most this many at the same time; 0 stops it.")
@option(
    "--rate", multiple=True, metavar="RATE", help="Maximum starts in any period: 10/s, 100/min (repeat for several)."
)
@option("--key-limit", type=_number, metavar="N", help="As --limit, for the jobs of each key.")
@option("--key-rate", multiple=True, metavar="RATE", help="As --rate, for the jobs of each key.")
def set_(
    scope: Scope,
    name: str,
    limit: int | str | None,
    rate: tuple[str, ...],
    key_limit: int | str | None,
    key_rate: tuple[str, ...],
) -> None:
    """Limit a task or a queue on all workers, from now on.

    It wins over what code declares, until `dray limits reset`. `none` instead of a value lifts what code declares.
    Options that are left out stay as they are. What runs goes on.
    """
    given = {Kind.LIMIT: _words(limit), Kind.RATE: rate, Kind.KEY_LIMIT: _words(key_limit), Kind.KEY_RATE: key_rate}
    bounds = _bounds(f"{scope} {name}", given)
    if not bounds:
        raise click.UsageError("say what to limit: --limit, --rate, --key-limit or --key-rate")
    check_name(scope, name)
    app = app_on_tables()
    _warn_of_unknown(app, scope, name)
    if not acting.set_limits(core_of(app), scope, name, bounds, person()):
        say(f"{scope} {name} had these limits already")
    _put(app, (scope, name))


@limits.command()
@_scope_argument
@click.argument("name")
def reset(scope: Scope, name: str) -> None:
    """Take back what `dray limits set` has said of a task or a queue; what code declares holds again."""
    check_name(scope, name)
    app = app_on_tables()
    if not acting.reset_limits(core_of(app), scope, name, person()):
        set_by_hand = [info.name for info in app.limits() if info.scope == scope and info.override]
        say(f"no limit of {scope} {name} was set by an operator{did_you_mean(name, set_by_hand)}")
    _put(app, (scope, name))


def _words(value: int | str | None) -> tuple[int | str, ...]:
    return () if value is None else (value,)


def _bounds(of: str, given: Mapping[Kind, tuple[int | str, ...]]) -> dict[Kind, tuple[Bound, ...]]:
    """What the options name; an empty tuple for ``none``."""
    lifted: dict[Kind, tuple[Bound, ...]] = {}
    named: dict[str, int | str | list[int | str]] = {}
    for kind, words in given.items():
        if _NONE in words:
            if len(words) > 1:
                raise click.UsageError(f"--{kind.replace('_', '-')} is either none or rates, not both")
            lifted[kind] = ()
        elif words:
            named[kind] = list(words) if kind in RATE_KINDS else words[0]
    return {**lifted, **bounds_of(of, named)}


def _warn_of_unknown(app: dray.App, scope: Scope, name: str) -> None:
    known = _queues(app) if scope == "queue" else _tasks(app)
    if name not in known:
        longer = [each for each in known if each.endswith(f".{name}")]
        hint = f"; did you mean {longer[0]}?" if longer else did_you_mean(name, known)
        say(f"{scope} {name} has not been used so far{hint}")


def _queues(app: dray.App) -> Collection[str]:
    return {queue.name for queue in app.queues()}


def _tasks(app: dray.App) -> Collection[str]:
    """Those that the code here, a worker or another limit names."""
    registered = {task.name for task in core_of(app).registry}
    limited = {info.name for info in app.limits() if info.scope == "task"}
    return registered.union(limited, *(worker.tasks for worker in app.workers()))
