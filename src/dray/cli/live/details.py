"""What `dray top` shows of one thing, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dray.cli import shapes
from dray.cli.output import cell
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.app import App

_LOG_LINES = 1_000

_KEYS = """\
tab, shift-tab    the next list, the one before
up, down, j, k    the row above, below; page up, page down, home, end
enter             all of it: a job with its attempts, and why it is where it is
l                 what was logged inside the job
p                 pause the queue, or let it go on
r                 start the failed job over
c                 cancel the job (asks)
/                 only rows that hold a text; escape: all again
ctrl-l            draw everything anew
?                 this
q                 the end; in a text: back"""


def keys() -> list[str]:
    """What the keys do."""
    return list(_KEYS.splitlines())


def job(app: App, job_id: str) -> list[str]:
    """All that is known of a job, as `dray job show` has it, and as `dray why` has it."""
    from dray.cli.commands.job import described  # noqa: PLC0415 - it builds commands
    from dray.ops.why import why  # noqa: PLC0415

    found = described(shapes.whole_job(app.job(job_id)))
    causes = why(app.backend, job_id).causes
    return [*(escape_control(cause.text) for cause in causes), "", *found]


def logs(app: App, job_id: str) -> list[str]:
    """What was logged inside a job."""
    found = [shapes.log_line(line) for line in app.job(job_id).logs(limit=_LOG_LINES)]
    return [_line(line) for line in found] or ["nothing was logged"]


def _line(line: dict[str, Any]) -> str:
    when = line["at"].astimezone()
    return f"{when:%H:%M:%S} {cell(line['level']).lower():<7} {cell(line['logger'])}: {cell(line['message'])}"


def things(shape: dict[str, Any], left_out: Sequence[str] = ("now",)) -> list[str]:
    """A row of a list that is no job, a line a value."""
    there = {name.replace("_", " "): value for name, value in shape.items() if name not in left_out}
    width = max(map(len, there))
    return [f"{name:<{width}}  {cell(value)}" for name, value in there.items()]
