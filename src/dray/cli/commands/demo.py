"""``dray demo``: the whole thing in a minute, on a scratch SQLite file."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from dray.cli.exits import Code, say
from dray.cli.output import Column, put
from dray.cli.shared import option, shared
from dray.wording import counted

if TYPE_CHECKING:
    from dray.cli.demo.verdict import Verdict

_COLUMNS = (
    Column("task", "name"),
    Column("jobs", "jobs", is_number=True),
    Column("completed", "completed", is_number=True),
    Column("cancelled", "cancelled", is_number=True),
    Column("retried", "retried", is_number=True),
    Column("lost with a worker", "crashed", is_number=True),
    Column("bodies begun", "begun", is_number=True),
)
_SHOWN = 20  # problems


@click.command()
@option("--jobs", "scale", type=click.IntRange(100, 100_000), default=3000, show_default=True, help="How many jobs.")
@option("--concurrency", type=click.IntRange(1, 100), default=8, show_default=True, help="Bodies a worker runs.")
@option("--seconds", type=click.IntRange(5), default=55, show_default=True, help="Give up after this time.")
@option("--keep", is_flag=True, help="Keep the database, the ledger and the workers' logs, and say where they are.")
@shared
def demo(scale: int, concurrency: int, seconds: int, *, keep: bool) -> int:
    """Run a few thousand jobs on two workers, kill one of them, and check that nothing was lost or done twice.

    Everything happens on a scratch SQLite file, which is removed at the end. Exit code 0 only if all is well.
    """
    with _scratch(keep=keep) as folder:
        return _run(folder, scale, concurrency, float(seconds))


def _run(folder: Path, scale: int, concurrency: int, seconds: float) -> int:
    from dray.cli.demo import tasks  # noqa: PLC0415 - `dray demo --help` needs none of it
    from dray.cli.demo.acts import Play  # noqa: PLC0415
    from dray.cli.demo.stage import stage  # noqa: PLC0415
    from dray.cli.demo.workers import Workers  # noqa: PLC0415

    url = f"sqlite:///{folder / 'demo.db'}"
    tasks.app.settings = replace(tasks.app.settings, url=url)
    with tasks.app, Workers(url, folder, concurrency) as workers:
        with stage() as shown:
            play = Play(folder, shown, workers, scale, seconds)
            verdict = play.perform()
        _put(verdict, play.remarks)
    return Code.FAILED if verdict.problems else Code.DONE


def _put(verdict: Verdict, remarks: list[str]) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    from dray.cli.demo.stage import put_accounts  # noqa: PLC0415

    put("")
    put_accounts([asdict(kind) for kind in verdict.kinds], _COLUMNS)
    put("")
    for remark in remarks:
        put(f"- {remark}")
    if verdict.problems:
        for problem in verdict.problems[:_SHOWN]:
            say(problem)
        wrong = counted(len(verdict.problems), "thing is wrong", "things are wrong")
        say(f"{wrong}; run it again with --keep and look at the database")
        return
    jobs = sum(kind.jobs for kind in verdict.kinds)
    died = counted(
        verdict.crashed, "attempt died with its worker and was", "attempts died with their worker and were"
    )
    put(f"- {died} made again; no other body was repeated")
    put(f"All is well: {jobs:,} jobs, none lost, none completed twice; the ledger of the bodies agrees.")


@contextmanager
def _scratch(*, keep: bool) -> Generator[Path]:
    """A folder of our own, removed however this ends."""
    folder = Path(tempfile.mkdtemp(prefix="dray-demo-"))
    # SIGINT too: whoever is started in the background by a shell is told to ignore it.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield folder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if keep:
            say(f"kept in {folder}: demo.db, ledger, and the workers' logs; try `dray stats --url {folder}/demo.db`")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:  # noqa: ARG001 - as signals call it
    raise KeyboardInterrupt
