"""``dray doctor`` and ``dray health``: what is wrong, in detail for people and in one line for probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dray.cli.cells import cell
from dray.cli.exits import Code, sentence
from dray.cli.options import command, option, wants_json
from dray.cli.output import has_colours, is_ascii_only, is_terminal, line, put, put_either, put_line
from dray.cli.parsing import time_option
from dray.model.values import check_name
from dray.wording import counted, span

if TYPE_CHECKING:
    from dray.ops.doctor import Result

_MARKS = {"ok": ("✓", "green"), "note": ("·", "cyan"), "warning": ("!", "yellow"), "failed": ("✗", "red")}
_WORDS = {verdict: (f"{verdict:<7}", colour) for verdict, (_, colour) in _MARKS.items()}


@command()
@option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@option("--skip", multiple=True, metavar="CHECK", help="Leave out this check (repeat for several).")
def doctor(skip: Sequence[str], *, strict: bool) -> int:
    """Look for what is wrong, or soon may be, and say how to fix it. Changes nothing.

    In a pipe: name, verdict (ok, note, warning, failed), text, fix. Exit code 1: a check failed; 6: the database is
    out of reach, or its tables are missing, behind or too new.
    """
    from dray.cli.examining import database_and_code_here  # noqa: PLC0415 - the checks load sqlite3
    from dray.ops.doctor import BARRIERS, CHECKS, examine  # noqa: PLC0415 - the same

    names = [check.name for check in CHECKS]
    for name in skip:
        if name not in names:
            raise click.UsageError(f"there is no check {name!r}; there are {', '.join(sorted(names))}")
    found = examine(database_and_code_here(), skip)
    if is_terminal() and not wants_json():
        results = _drawn(found, max(map(len, names)))
    else:
        results = list(found)
        shapes = [asdict(result) for result in results]
        put_either(shapes, tuple, lambda: (line(*shape.values()) for shape in shapes))
    bad = {result.name for result in results if result.verdict == "failed"}
    if bad & BARRIERS:
        return Code.NO_DATABASE
    is_warned = strict and any(result.verdict == "warning" for result in results)
    return Code.FAILED if bad or is_warned else Code.DONE


def _drawn(found: Iterable[Result], width: int) -> list[Result]:
    """Writes a line for each check as soon as it is done, and its fix if it has one."""
    marks, arrow = (_WORDS, "fix:") if is_ascii_only("✓·✗→") else (_MARKS, "→")
    results: list[Result] = []
    for result in found:
        results.append(result)
        mark, colour = marks[result.verdict]
        shown = click.style(mark, fg=colour) if has_colours() else mark
        put(f"{shown} {result.name:<{width}}  {cell(result.text)}")
        if result.fix is not None:
            put(f"{'':<{len(mark) + width + 3}}{arrow} {cell(result.fix)}")
    counts = Counter(result.verdict for result in results)
    put(f"{counted(len(results), 'check')}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts))
    return results


@command()
@option("--worker", metavar="NAME|ID", help="This worker must be alive; the end of its id is enough.")
@option(
    "--min-workers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Minimum number of live workers.",
)
@option("--queue", "queues", multiple=True, metavar="QUEUE", help="Check --max-age for this queue only.")
@time_option("--max-age", help="No ready job may wait for longer.")
@option("--max-failed", type=click.IntRange(0), metavar="N", help="Maximum number of failed jobs within --window.")
@time_option("--window", default=3600.0, help="The period for --max-failed (1h).")
def health(queues: Sequence[str], **demands: Any) -> int:
    """Say in one line whether the queue works, for probes. Exit code 0: it does; 1: it does not.

    The database must be in reach, its tables fit this version, a worker be alive, and every duty have a worker.
    """
    from dray.cli.examining import health_here  # noqa: PLC0415 - the checks load sqlite3

    for name in queues:
        check_name("queue", name)
    if queues and demands["max_age"] is None:
        raise click.UsageError("--queue goes with --max-age")
    found = health_here(queues=queues, **demands)
    shape = {"is_healthy": found.is_healthy, **asdict(found), "problems": list(found.problems)}
    if not found.is_healthy:
        put_line(lambda: shape, f"not healthy: {sentence('; '.join(found.problems))}")
        return Code.FAILED
    oldest = f"; the oldest ready job has waited for {span(found.oldest_ready)}" if found.oldest_ready else ""
    put_line(lambda: shape, f"ok: {counted(found.workers or 0, 'worker')} alive{oldest}")
    return Code.DONE
