"""``dray``: the list of its commands."""

from __future__ import annotations

import click

from dray import __version__
from dray.cli.lazy import LazyGroup, Place
from dray.cli.shared import shared

_COMMANDS = {
    name: Place(f"dray.cli.commands.{name}", about)
    for name, about in {
        "demo": "the whole thing in a minute, on a scratch SQLite file",
        "dev": "run jobs, and start anew when the code changes",
        "worker": "run jobs",
        "enqueue": "put a job into its queue",
        "run": "run a task here and now, without the queue",
        "tasks": "list the tasks of the app",
        "jobs": "list jobs",
        "job": "show, wait for, retry, cancel or delete jobs",
        "why": "say why jobs are where they are, and where their bodies are",
        "queues": "list, pause, resume and set queues",
        "workers": "list workers",
        "workflows": "list, draw, cancel and retry graphs of jobs",
        "schedules": "list, add, preview, run, pause, resume and remove schedules",
        "stats": "numbers: jobs by state and queue, rates, run times",
        "top": "a live view of queues, running jobs, failures and workers",
        "tail": "events and log lines as they happen",
        "db": "make, upgrade, check, copy and clear the tables",
        "audit": "check that the tables hold what they promise",
        "doctor": "look for what is wrong, and say what to do about it",
        "health": "one line and an exit code for probes: does the queue work?",
        "bench": "what this database can do, on a scratch file or schema beside it",
        "config": "every setting, and where it comes from",
        "completion": "the script that has a shell complete commands, options and values",
    }.items()
}


@click.group(
    cls=LazyGroup,
    places=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option can also be set by a variable, such as DRAY_URL or DRAY_WORKER_CONCURRENCY.",
)
@click.version_option(__version__, prog_name="dray")
@shared
def root() -> None:
    """A durable job queue that lives in your database."""
