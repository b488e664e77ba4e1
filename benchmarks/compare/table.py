"""The results as Markdown: the rates, then what each queue guarantees and how it was set."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare.report import MEASURES, Figure, Report, Row

_FEW = 100  # samples: with fewer, p99 is the longest


def markdown(report: Report) -> str:
    parts = [_heading(report), _rates(report.rows), _guarantees(report.rows), _notes(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(report: Report) -> str:
    rounds = f"{report.rounds} round" + ("s" if report.rounds != 1 else "")
    return (
        f"{report.machine}. Medians of {rounds}, with the lowest and the highest in brackets. A no-op with six"
        " arguments (117 bytes of JSON), one worker.\n\n"
        f"- enqueue: {report.singles:,} jobs, a call for each\n"
        f"- bulk: {report.jobs:,} jobs, 1,000 in a call or a transaction; - where the queue has neither\n"
        f"- drain: {report.jobs:,} jobs, from the start of the first body to the start of the last\n"
        "- pick-up: from the return of the enqueue call to the start of the body, in an idle worker; between two jobs"
        " it is idle for up to 60 ms, or up to the polling interval of a queue that polls less often"
    )


def _rates(rows: Sequence[Row]) -> str:
    cells = [[_name(row), *(cell(row.figure(measure)) for measure in MEASURES)] for row in rows]
    return _table(["", *MEASURES.values()], cells, align_right=True)


def _guarantees(rows: Sequence[Row]) -> str:
    heads = ["", "durable when enqueue returns", "after kill -9 of the worker", "fenced", "delivery", "settings"]
    cells: list[list[str]] = []
    for row in rows:
        given = row.guarantees
        cells.append([_name(row), given.durable, given.killed, given.fenced, given.delivery, row.settings])
    return _table(heads, cells)


def _notes(report: Report) -> str:
    lines = [f"- Left out: {sentence}" for sentence in report.left_out]
    for row in report.rows:
        lines += [f"- {row.title} failed in a round: {failure}" for failure in row.failures]
        drained = [each.drained for each in row.rounds if each.drained < report.jobs]
        if drained:
            lines.append(f"- {row.title}: the drain ended after its time limit, with {min(drained):,} jobs at least.")
        samples = min((each.samples for each in row.rounds), default=_FEW)
        if samples < _FEW:
            lines.append(f"- {row.title}: only {samples} pick-ups in a round, so p99 is the longest.")
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row.name} {row.version}, {row.store}"


def cell(found: Figure | None) -> str:
    if found is None:
        return "-"
    if found.low == found.high:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)} to {number(found.high)})"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, align_right: bool = False) -> str:
    rule = ["---", *(["---:"] if align_right else ["---"]) * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *rows])
