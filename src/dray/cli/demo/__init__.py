"""``dray demo``: a few thousand jobs on two worker processes, one of which is killed, and then the accounts.

`play` is what happens, in order, and the worker processes; `tasks` what they run, with a ledger outside the database;
`accounts` the comparison of the database with the ledger.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click

from dray.cli.exits import Code, say
from dray.cli.options import command, option
from dray.cli.processes import ENDING, handling


@command()
@option("--jobs", "scale", type=click.IntRange(100, 100_000), default=3000, show_default=True, help="Number of jobs.")
@option(
    "--concurrency", type=click.IntRange(1, 100), default=8, show_default=True, help="Concurrency of each worker."
)
@option("--seconds", type=click.IntRange(5), default=55, show_default=True, help="Give up after this time.")
@option("--keep", is_flag=True, help="Keep the database, the ledger and the workers' logs, and say where they are.")
def demo(scale: int, concurrency: int, seconds: int, *, keep: bool) -> int:
    """Run a few thousand jobs on two workers, kill one of them, and check that nothing was lost or done twice.

    Everything happens on a scratch SQLite file, which is removed at the end. Exit code 0 only if all is well.
    """
    folder = Path(tempfile.mkdtemp(prefix="dray-demo-"))
    try:
        # SIGINT too: a shell makes the commands that it starts in the background ignore it.
        with handling(dict.fromkeys(ENDING, signal.default_int_handler)):
            from dray.cli.demo.play import perform  # noqa: PLC0415 - `--help` need not load asyncio and sqlite3

            is_well = perform(folder, scale, concurrency, float(seconds))
        return Code.DONE if is_well else Code.FAILED
    finally:
        if keep:
            say(f"kept in {folder}: demo.db, ledger, and the workers' logs; try `dray stats --url {folder}/demo.db`")
        else:
            shutil.rmtree(folder, ignore_errors=True)
