"""``dray db move``: everything carried into another database."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dray.cli.exits import say
from dray.cli.output import Column, put_json, put_list
from dray.cli.shared import option, shared, wants_json
from dray.sanitize import holds_password
from dray.wording import counted

if TYPE_CHECKING:
    from dray.ops.move import Moved, Progress, Side

_VARIABLE = "DRAY_DB_MOVE_"
_SECONDS = 10.0  # between two lines where there is no terminal

_COLUMNS = (Column("table", "table"), Column("rows", "rows", is_number=True), Column("checksum", "checksum"))


@click.command()
@click.argument("source", envvar=f"{_VARIABLE}SOURCE")
@click.argument("target", envvar=f"{_VARIABLE}TARGET")
@option(
    "--force",
    is_flag=True,
    help="Carry running jobs too, whose workers are gone: they are taken back in TARGET. With --abandon: even if "
    "TARGET is lost.",
)
@option("--dry-run", is_flag=True, help="Only say what would be carried.")
@option("--abandon", is_flag=True, help="Take an unfinished move back: empty TARGET, and let SOURCE go on.")
@option("--chunk", type=click.IntRange(1, 100_000), default=5_000, show_default=True, help="Rows in a transaction.")
@shared
def move(source: str, target: str, *, force: bool, dry_run: bool, abandon: bool, chunk: int) -> None:
    """Carry queues, schedules, jobs, workflows, history and logs from SOURCE into TARGET, which has to be empty.

    Ids stay the same. Stop the workers of SOURCE first; enqueues may go on, and are refused with TARGET's address
    once all is carried. Cut off, it goes on when it is run again. In a pipe: table, rows, checksum. SOURCE and TARGET
    can be given as DRAY_DB_MOVE_SOURCE and DRAY_DB_MOVE_TARGET, which keeps passwords out of the list of processes.
    """
    from dray.backends.tables import Portion  # noqa: PLC0415 - `--help` needs none
    from dray.cli.logs import say_warnings  # noqa: PLC0415
    from dray.ops import move as ops  # noqa: PLC0415

    say_warnings()
    with _side(source, is_target=False) as here, _side(target, is_target=True) as there:
        if abandon:
            elsewhere = ops.abandon(here, there, force=force)
            kept = f"stays closed: it has moved to {elsewhere}" if elsewhere else "goes on as before"
            say(f"nothing is left in {there.place}; {here.place} {kept}")
            return
        plan = ops.plan(here, there, force=force, only_look=dry_run)
        if plan.is_done:
            say(f"{here.place} has moved to {there.place} before; there is nothing left to do")
        if plan.obstacle:
            say(f"before the move: {plan.obstacle}")
        if dry_run or plan.is_done:
            _put(ops.as_planned(plan))
            return
        if plan.mark is not None:
            say("going on with a move that was cut off")
        try:
            with _told(plan.source.place) as tell:
                moved = ops.carry(plan, portion=Portion(chunk), tell=tell)
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here, and with --abandon takes it back")
            raise
    _put(moved)
    if moved.taken_back:
        one = "job that was running had lost its worker and was taken back"
        many = "jobs that were running had lost their workers and were taken back"
        say(counted(moved.taken_back, one, many))
    say(f"{moved.source} has moved to {moved.target} in {moved.seconds:.1f} s; both have the same rows")


@contextmanager
def _side(url: str, *, is_target: bool) -> Generator[Side]:
    from dray.clock import SystemClock  # noqa: PLC0415
    from dray.ops.move import Side  # noqa: PLC0415
    from dray.settings import Settings  # noqa: PLC0415

    name = "TARGET" if is_target else "SOURCE"
    if holds_password(url) and click.get_current_context().get_parameter_source(name.lower()) is _TYPED:
        say(
            f"a password on the command line can be seen by every user of this machine; set {_VARIABLE}{name} instead"
        )
    settings = Settings.of(url, migrate=False)
    backend = settings.open(SystemClock())
    try:
        yield Side(backend, settings.place)
    finally:
        backend.close()


_TYPED = click.core.ParameterSource.COMMANDLINE


def _put(moved: Moved) -> None:
    tables = [{"table": each.table, "rows": each.rows, "checksum": each.checksum} for each in moved.tables]
    if not wants_json():
        put_list(tables, _COLUMNS, ("table", "rows", "checksum"), "")
        return
    put_json(
        {
            "source": moved.source,
            "target": moved.target,
            "done": moved.is_done,
            "tables": tables,
            "states": moved.states,
            "taken_back": moved.taken_back,
            "seconds": round(moved.seconds, 3),
        }
    )


@contextmanager
def _told(source: str) -> Generator[Callable[[Progress], None]]:
    """How far it is: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(source)
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None)
        yield lambda step: bars.update(
            bar, description=_worded(step), completed=step.done, total=max(step.total, step.done)
        )


def _lines(source: str) -> Callable[[Progress], None]:
    next_at = time.monotonic() + _SECONDS
    was_left = False

    def tell(step: Progress) -> None:
        nonlocal next_at, was_left
        if step.is_left and not was_left:
            was_left = True
            say(f"{source} is closed; carrying what has changed since")
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _SECONDS
            say(_worded(step))

    return tell


def _worded(step: Progress) -> str:
    what = "compared" if step.is_left else "carried"
    return f"{step.done:,} of {counted(max(step.total, step.done), 'row')} {what} ({step.table})"
