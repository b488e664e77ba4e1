"""``dray db move``: everything moved into another database."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing

import click

from dray.backends.tables import Portion
from dray.cli.apps import person
from dray.cli.exits import say
from dray.cli.logs import say_warnings
from dray.cli.options import command, option, warn_of_password
from dray.cli.output import Column, line, progress, put_either, table
from dray.clock import SystemClock
from dray.ops import move as ops
from dray.ops import move_plan
from dray.ops.listing import values_of
from dray.settings import Settings
from dray.wording import counted

_VARIABLE = "DRAY_DB_MOVE_"
_SECONDS = 10.0  # between two lines of progress without a terminal

_COLUMNS = (Column("table", "table"), Column("rows", "rows", is_number=True), Column("checksum", "checksum"))


@command()
@click.argument("source", envvar=f"{_VARIABLE}SOURCE")
@click.argument("target", envvar=f"{_VARIABLE}TARGET")
@option(
    "--force",
    is_flag=True,
    help="Move running jobs whose workers are gone, too: they are rescued in TARGET. With --abandon: even if TARGET "
    "is lost.",
)
@option("--dry-run", is_flag=True, help="Only say what would be moved.")
@option("--abandon", is_flag=True, help="Undo an unfinished move: empty TARGET, and let SOURCE go on.")
@option("--chunk", type=click.IntRange(1, 100_000), default=5_000, show_default=True, help="Rows in a transaction.")
def move(source: str, target: str, *, force: bool, dry_run: bool, abandon: bool, chunk: int) -> None:
    """Move queues, schedules, jobs, workflows, history, logs and actions from SOURCE into an empty TARGET.

    Ids stay the same. Stop the workers of SOURCE first. Clients may go on enqueueing until the end; then SOURCE
    refuses, and names TARGET. An interrupted move goes on when it is run again. In a pipe: table, rows, checksum.
    DRAY_DB_MOVE_SOURCE and DRAY_DB_MOVE_TARGET keep passwords out of the list of processes.
    """
    say_warnings()
    here, there = _side("source", source), _side("target", target)
    with closing(here.backend), closing(there.backend):
        if abandon:
            elsewhere = ops.abandon(here, there, force=force)
            kept = f"stays closed: it has moved to {elsewhere}" if elsewhere else "goes on as before"
            say(f"nothing is left in {there.place}; {here.place} {kept}")
            return
        plan = move_plan.plan(here, there, force=force, only_look=dry_run)
        if plan.is_done:
            say(f"{here.place} has moved to {there.place} before; there is nothing left to do")
        if plan.obstacle:
            say(f"before the move: {plan.obstacle}")
        if dry_run or plan.is_done:
            _put(move_plan.as_planned(plan))
            return
        if plan.mark is not None:
            say("going on with an interrupted move")
        try:
            with progress("", percent=True) as report:
                tell = _telling(plan.source.place, report)
                moved = ops.carry(plan, portion=Portion(chunk), tell=tell, by=person())
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here, and with --abandon undoes the move")
            raise
    _put(moved)
    if moved.taken_back:
        one = "job that was running had lost its worker and was rescued"
        many = "jobs that were running had lost their workers and were rescued"
        say(counted(moved.taken_back, one, many))
    say(f"{moved.source} has moved to {moved.target} in {moved.seconds:.1f} s; both have the same rows")


def _side(param: str, url: str) -> ops.Side:
    warn_of_password(param, url, f"{_VARIABLE}{param.upper()}")
    settings = Settings.typed(url, migrate=False)
    return ops.Side(settings.open(SystemClock()), settings.place)


def _put(moved: ops.Moved) -> None:
    tables = [
        {"table": name, "rows": rows, "checksum": moved.checksums.get(name)} for name, rows in moved.rows.items()
    ]
    shape = {
        **values_of(moved, "source target"),
        "done": moved.is_done,
        "tables": tables,
        **values_of(moved, "states taken_back"),
        "seconds": round(moved.seconds, 3),
    }
    put_either(shape, lambda: table(tables, _COLUMNS), lambda: (line(*each.values()) for each in tables))


def _telling(source: str, report: Callable[..., None]) -> Callable[[ops.Progress], None]:
    """Returns what tells how far the move is: by a bar on a terminal, else by a line now and then."""
    next_at = time.monotonic() + _SECONDS
    was_left = False

    def tell(step: ops.Progress) -> None:
        nonlocal next_at, was_left
        total, what = max(step.total, step.done), "compared" if step.is_left else "moved"
        words = f"{step.done:,} of {counted(total, 'row')} {what} ({step.table})"
        if sys.stderr.isatty():
            report(step.done, total, words)
            return
        if step.is_left and not was_left:
            was_left = True
            say(f"{source} is closed; moving what has changed since")
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _SECONDS
            say(words)

    return tell
