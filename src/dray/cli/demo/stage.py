"""What the audience sees: a progress bar with lines above it on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from dray.cli.output import Column, Shape, cell, is_terminal, put, put_table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_STEP = 10  # percent between two plain lines


class Stage(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def tell(self, text: str) -> None:
        """Something happened."""
        ...

    def count(self, done: int, total: int, words: str) -> None:
        """So far it is."""
        ...


def stage() -> Stage:
    """The stage that stdout allows."""
    return _Terminal() if is_terminal() else _Plain()


class _Plain:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def tell(self, text: str) -> None:
        put(f"{time.monotonic() - self._began:5.1f}s  {text}")

    def count(self, done: int, total: int, words: str) -> None:
        step = 100 * done // total // _STEP
        if step > self._told:
            self._told = step
            self.tell(f"{done:,} of {total:,} done ({words})")


class _Terminal:
    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - for terminals

        self._began = time.monotonic()
        self._progress: Progress = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            transient=True,
        )
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415

        self._progress.console.print(Text(f"{time.monotonic() - self._began:5.1f}s  {text}"))

    def count(self, done: int, total: int, words: str) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task("", total=total)
        self._progress.update(self._bar, completed=done, description=words)


def put_accounts(rows: Sequence[Shape], columns: Sequence[Column]) -> None:
    """The table at the end."""
    if is_terminal():
        put_table(rows, columns)
        return
    words: list[list[Any]] = [[column.title for column in columns]]
    words += [[cell(row[column.key]) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in words) for place in range(len(columns))]
    for line in words:
        padded = (
            word.rjust(width) if column.is_number else word.ljust(width)
            for word, width, column in zip(line, widths, columns, strict=True)
        )
        put("  ".join(padded).rstrip())
