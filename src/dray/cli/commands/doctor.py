"""``dray doctor``: what is wrong, or soon may be, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dray.cli.examining import database_and_code_here
from dray.cli.exits import Code
from dray.cli.live.ink import is_ascii_only
from dray.cli.output import cell, is_terminal, put, put_json, put_line
from dray.cli.shared import option, shared, wants_json
from dray.wording import counted

if TYPE_CHECKING:
    from dray.ops.doctor import Result

_MARKS = {"ok": ("✓", "green"), "note": ("·", "cyan"), "warning": ("!", "yellow"), "failed": ("✗", "red")}
_WORDS = {verdict: (f"{verdict:<7}", colour) for verdict, (_, colour) in _MARKS.items()}


@click.command()
@option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@option("--skip", multiple=True, metavar="CHECK", help="Do not make this check.")
@shared
def doctor(skip: Sequence[str], *, strict: bool) -> int:
    """Look for what is wrong, or soon may be, and say what to do about it. Changes nothing.

    In a pipe: name, verdict (ok, note, warning, failed), text, fix. Exit code 1: a check failed; 6: the database is
    out of reach, or its tables are missing, behind or too new.
    """
    from dray.ops.doctor import BARRIERS, CHECKS, Verdict, examine  # noqa: PLC0415 - `--help` needs none

    names = {check.name for check in CHECKS}
    for name in skip:
        if name not in names:
            raise click.UsageError(f"there is no check {name!r}; there are {', '.join(sorted(names))}")
    results = _shown(examine(database_and_code_here(), skip))
    bad = {result.name for result in results if result.verdict is Verdict.FAILED}
    if bad & BARRIERS:
        return Code.NO_DATABASE
    is_warned = strict and any(result.verdict is Verdict.WARNING for result in results)
    return Code.FAILED if bad or is_warned else Code.DONE


def _shown(found: Iterable[Result]) -> list[Result]:
    if wants_json():
        results = list(found)
        put_json([asdict(result) for result in results])
    elif is_terminal():
        results = _drawn(found)
    else:
        results = list(found)
        for result in results:
            put_line(result.name, result.verdict, result.text, result.fix)
    return results


def _drawn(found: Iterable[Result]) -> list[Result]:
    """A line a check as it is made, and what to do where there is something to do."""
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.text import Text  # noqa: PLC0415

    from dray.ops.doctor import CHECKS  # noqa: PLC0415

    console = Console(highlight=False)
    width = max(len(check.name) for check in CHECKS)
    marks, arrow = (_MARKS, "→") if _can_draw() else (_WORDS, "fix:")
    results: list[Result] = []
    for result in found:
        results.append(result)
        mark, colour = marks[result.verdict]
        console.print(Text.assemble((mark, colour), f" {result.name:<{width}}  {cell(result.text)}"), soft_wrap=True)
        if result.fix is not None:
            console.print(Text(f"{'':<{len(mark) + width + 3}}{arrow} {cell(result.fix)}"), soft_wrap=True)
    counts = Counter(result.verdict for result in results)
    put(f"{counted(len(results), 'check')}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts))
    return results


def _can_draw() -> bool:
    return not is_ascii_only("✓·✗→")
