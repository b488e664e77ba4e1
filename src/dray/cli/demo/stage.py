"""What the demo shows: a progress bar and lines on a terminal, plain lines elsewhere, and the accounts at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Self

from rich.text import Text

from dray.cli.demo.accounts import Accounts
from dray.cli.exits import say
from dray.cli.output import Column, is_terminal, put, table
from dray.cli.terminal import progress_bar
from dray.wording import counted

_STEP = 10  # percent between two plain lines
_SHOWN = 20  # problems


class Stage:
    """Shows events as lines, and how far the work is: by a bar on a terminal, elsewhere by a line now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = 0
        self._progress = progress_bar("{task.completed:,.0f}/{task.total:,.0f}", "{task.description}", stderr=False)
        self._bar = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        if is_terminal():
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if is_terminal():  # elsewhere it would print an empty line
            self._progress.stop()

    def tell(self, text: str) -> None:
        timed = f"{time.monotonic() - self._began:5.1f}s  {text}"
        if is_terminal():
            self._progress.console.print(Text(timed))
        else:
            put(timed)

    def count(self, done: int, total: int, words: str) -> None:
        if is_terminal():
            self._progress.update(self._bar, completed=done, total=total, description=words, visible=True)
            return
        step = 100 * done // total // _STEP
        if step > self._told:
            self._told = step
            self.tell(f"{done:,} of {total:,} done ({words})")


_COLUMNS = (
    Column("task", "name"),
    Column("jobs", "jobs", is_number=True),
    Column("completed", "completed", is_number=True),
    Column("cancelled", "cancelled", is_number=True),
    Column("retried", "retried", is_number=True),
    Column("lost with a worker", "crashed", is_number=True),
    Column("bodies begun", "begun", is_number=True),
)


def put_accounts(accounts: Accounts, remarks: Sequence[str]) -> None:
    """Writes the table at the end, what was remarkable, and whether all is well."""
    drawn = table([asdict(task) for task in accounts.tasks], _COLUMNS)
    put("\n".join(["", *drawn, "", *(f"- {remark}" for remark in remarks)]))
    if accounts.problems:
        for problem in accounts.problems[:_SHOWN]:
            say(problem)
        wrong = counted(len(accounts.problems), "thing is wrong", "things are wrong")
        say(f"{wrong}; run it again with --keep and look at the database")
        return
    jobs = sum(task.jobs for task in accounts.tasks)
    crashed = sum(task.crashed for task in accounts.tasks)
    died = counted(crashed, "attempt died with its worker and was", "attempts died with their worker and were")
    put(f"- {died} repeated; no other body ran twice")
    put(f"All is well: {jobs:,} jobs, none lost, none completed twice; the ledger of the bodies agrees.")
