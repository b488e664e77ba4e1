"""``dray``: the list of its commands. The code of a command is loaded when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click
from click.shell_completion import CompletionItem

from dray import __version__
from dray.cli.exits import did_you_mean
from dray.cli.options import Group


class LazyGroup(Group):
    """A group whose commands are loaded when they are used, from the modules in ``lazy``, under their own names."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _ = self.lazy[cmd_name]
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"dray.cli.{module}"), name)
        if ctx.resilient_parsing:
            from dray.cli.completing import equip  # noqa: PLC0415 - only for a shell that completes a word

            equip(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        fitting = {name: about for name, (_, about) in self.lazy.items() if name.startswith(incomplete)}
        found = [CompletionItem(name, help=about) for name, about in fitting.items()]
        return found + click.Command.shell_complete(self, ctx, incomplete)  # not Group's: it would load them all

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self.lazy)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.lazy.items()])


_COMMANDS = {
    "demo": ("demo", "a tour in a minute, on a scratch SQLite file"),
    "dev": ("commands.dev", "run jobs, and restart when the code changes"),
    "worker": ("commands.worker", "run jobs"),
    "web": ("commands.web", "serve the dashboard"),
    "mcp": ("commands.mcp", "serve agents by the Model Context Protocol"),
    "enqueue": ("commands.enqueue", "put a job into its queue"),
    "run": ("commands.enqueue", "run a task here and now, without the queue"),
    "tasks": ("commands.tasks", "list the tasks of the app"),
    "jobs": ("commands.jobs", "list jobs"),
    "job": ("commands.job", "show, wait for, retry, cancel or delete jobs"),
    "why": ("commands.why", "explain a job: why it waits, failed or what it is doing now"),
    "queues": ("commands.queues", "list, pause, resume and set queues"),
    "workers": ("commands.tasks", "list workers"),
    "workflows": ("commands.workflows", "list, draw, cancel and retry graphs of jobs"),
    "schedules": ("commands.schedules", "list, add, preview, run, pause, resume and remove schedules"),
    "stats": ("commands.queues", "numbers: jobs by state and queue, rates, run times"),
    "top": ("commands.tail", "a live view of queues, running jobs, failures and workers"),
    "tail": ("commands.tail", "follow events and log lines as they happen"),
    "actions": ("commands.actions", "list what people did: who, when, to what"),
    "import": ("commands.importing", "bring jobs over from GigQ or lilota"),
    "db": ("commands.db", "create, upgrade, check, copy and prune the tables"),
    "audit": ("commands.audit", "check that the tables keep their invariants"),
    "doctor": ("commands.doctor", "look for problems, and say how to fix them"),
    "health": ("commands.doctor", "one line and an exit code for probes: does the queue work?"),
    "bench": ("commands.bench", "measure what this database can do, on a scratch file or schema beside it"),
    "config": ("commands.config", "show every setting, and where it comes from"),
    "completion": ("completing", "print the script that lets a shell complete commands, options and values"),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every option can also be set by a variable, such as DRAY_URL or DRAY_WORKER_CONCURRENCY.",
)
@click.version_option(__version__, prog_name="dray")
def root() -> None:
    """A durable job queue that lives in your database."""
