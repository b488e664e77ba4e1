"""``dray health``: one line and an exit code for probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from dray.cli.examining import database_here
from dray.cli.exits import Code, sentence
from dray.cli.output import put, put_json
from dray.cli.shared import option, shared, wants_json
from dray.cli.times import Duration, span
from dray.model.values import check_name
from dray.wording import counted


@click.command()
@option("--worker", metavar="NAME|ID", help="This worker has to be alive; the end of its id will do.")
@option(
    "--min-workers", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="So many have to be."
)
@option("--queue", "queues", multiple=True, metavar="QUEUE", help="What --max-age is about; all queues without it.")
@option("--max-age", type=Duration(), metavar="TIME", help="No ready job may wait for longer.")
@option("--max-failed", type=click.IntRange(0), metavar="N", help="No more jobs may fail within --window.")
@option("--window", type=Duration(), default=3600.0, metavar="TIME", help="What --max-failed is about (1h).")
@shared
def health(queues: Sequence[str], **demands: Any) -> int:
    """Say in one line whether the queue works, for probes. Exit code 0: it does; 1: it does not.

    The database has to be in reach, its tables fit, a worker be alive, and every duty have a worker.
    """
    from dray.ops.health import Demands  # noqa: PLC0415 - `--help` needs none
    from dray.ops.health import health as ask  # noqa: PLC0415

    for name in queues:
        check_name("queue", name)
    if queues and demands["max_age"] is None:
        raise click.UsageError("--queue goes with --max-age")
    found = ask(database_here(), Demands(queues=queues, **demands))
    if wants_json():
        put_json({"is_healthy": found.is_healthy, **asdict(found), "problems": list(found.problems)})
    elif found.is_healthy:
        oldest = f"; the oldest ready job has waited for {span(found.oldest_ready)}" if found.oldest_ready else ""
        assert found.workers is not None
        put(f"ok: {counted(found.workers, 'worker')} alive{oldest}")
    else:
        put(f"not healthy: {sentence('; '.join(found.problems))}")
    return Code.DONE if found.is_healthy else Code.FAILED
