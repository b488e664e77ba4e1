"""How far something long is, on stderr where somebody watches; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Report = Callable[[int, int | None], None]  # how much is done, of how much in all if that is known


@contextmanager
def progress(what: str) -> Generator[Report]:
    """A bar that is gone when the block ends; call what it gives with how far things are."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            words = f"{what} {done:,}" if total is None else what
            shown.update(bar, description=words, completed=done, total=total)

        yield report
