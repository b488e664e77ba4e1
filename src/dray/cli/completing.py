"""Shell completion: the script, and what a shell offers for Tab. click knows commands and options; values are ours.

The shell asks while a line is being typed. So values are quick (none after one second), silent about errors, harmless
(no file is created and no code of the user runs) and few.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from dray import backends
from dray.cli.options import command, told
from dray.cli.output import STATES, put
from dray.cli.source import Source, configured_app, read_source
from dray.clock import SystemClock
from dray.settings import Settings

_INSTALL = {
    "bash": 'eval "$(dray completion bash)" in ~/.bashrc, or once: '
    "dray completion bash > ~/.local/share/bash-completion/completions/dray",
    "zsh": 'eval "$(dray completion zsh)" in ~/.zshrc, after compinit',
    "fish": "dray completion fish > ~/.config/fish/completions/dray.fish",
}
_MOST = 50  # values
_SECONDS = 1.0
_PATIENCE = 0.5  # seconds for a locked database
_SHORT = 8  # characters of an id, from its end
_FOR_SHELLS = frozenset(" !\"#$&'()*;<>?[\\]^`{|}~")  # bash would put a name with these on the line as it is


@command()
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, and values such as ids, queues and tasks."""
    root = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None
    # Not its own source(): that of bash starts a bash, to look at its version.
    script = ShellComplete.source(made(root, {}, "dray", "_DRAY_COMPLETE"))
    # After the script: a zsh that loads it from its path looks for #compdef in the first line.
    put(f"{script.rstrip()}\n# To install: {_INSTALL[shell]}")


def complete(root: click.Group) -> NoReturn:
    """Replies to the shell and ends the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # no warning may appear within a half-typed line
    root.main([], prog_name="dray")
    raise AssertionError("click ends the process")


def equip(command: click.Command) -> None:
    """Makes the parameters of a command offer their values."""
    for parameter in command.params:
        # Where there is a choice, as in [ID... | SEARCH...], the first that has known values.
        names = [*(parameter.metavar or "").split("|"), parameter.name or ""]
        words = [name.strip("[]. ").upper() for name in names]
        word = next((word for word in words if word in _WORDS), None)
        if word is not None:
            parameter.type = _Values(word)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            equip(each)


class _Values(click.types.StringParamType):
    """Text with some known values."""

    def __init__(self, word: str) -> None:
        self._word = word

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        timer = threading.Timer(_SECONDS, os._exit, [0])
        timer.daemon = True
        timer.start()
        try:
            found = _WORDS[self._word](ctx, incomplete)
        except Exception:  # noqa: BLE001 - no database, no such file, unreadable code: nothing is offered
            return []
        finally:
            timer.cancel()
        fitting = [
            (value, about)
            for value, about in found.items()
            if value.startswith(incomplete) and not _FOR_SHELLS.intersection(value)
        ]
        return [CompletionItem(value, help=about) for value, about in fitting[:_MOST]]


_Offer = Mapping[str, str | None]  # values, and what each is about


def _queues(ctx: click.Context, _: str) -> _Offer:
    with _opened(ctx) as backend:
        names = {queue.name for queue in backend.queues.all()} | set(backend.history.stats(1_000_000).counts)
    return dict.fromkeys(sorted(names))


def _tasks(ctx: click.Context, _: str) -> _Offer:
    names = set(_source(ctx).tasks)
    with suppress(Exception), _opened(ctx) as backend:  # without a database the code alone must do
        names.update(*(worker.tasks for worker in backend.workers.all(_MOST)))
    return dict.fromkeys(sorted(names))


def _ids(ctx: click.Context, incomplete: str) -> _Offer:
    """By their last characters, as people see them; whole ids once more than that is typed."""
    kind = ctx.command_path.split()[1]
    with _opened(ctx) as backend:
        found = _FINDERS.get(kind, _jobs)(backend, incomplete)
    return {each if len(incomplete) > _SHORT else each[-_SHORT:]: about for each, about in found}


def _jobs(backend: backends.Backend, part: str) -> list[tuple[str, str]]:
    if not part:
        found = backend.jobs.newest(limit=_MOST)
    else:
        ids = backend.jobs.find(part.lower(), _MOST)
        found = backend.jobs.get(ids) if ids else []
    return [(job.id, f"{job.task} {job.state}") for job in found]


def _workflows(backend: backends.Backend, part: str) -> list[tuple[str, str]]:
    if part:
        return [(found, "") for found in backend.workflows.find(part.lower(), _MOST)]
    return [(found.id, found.name) for found in backend.workflows.newest(limit=_MOST)]


def _workers(backend: backends.Backend, _: str) -> list[tuple[str, str]]:
    return [(worker.id, worker.name) for worker in backend.workers.all(_MOST) if worker.stopped_at is None]


_FINDERS: dict[str, Callable[[Any, str], list[tuple[str, str]]]] = {"workflows": _workflows, "workers": _workers}


def _workflow_names(ctx: click.Context, _: str) -> _Offer:
    with _opened(ctx) as backend:
        return dict.fromkeys(workflow.name for workflow in backend.workflows.newest(limit=_MOST))


def _names(ctx: click.Context, incomplete: str) -> _Offer:
    if ctx.command_path.startswith("dray limits"):
        return (_queues if ctx.params.get("scope") == "queue" else _tasks)(ctx, incomplete)
    return _schedules(ctx, incomplete) if ctx.command_path.startswith("dray schedules") else {}


def _schedules(ctx: click.Context, _: str) -> _Offer:
    with _opened(ctx) as backend:
        return {schedule.name: schedule.task for schedule in backend.schedules.all()}


_WORDS: dict[str, Callable[[click.Context, str], _Offer]] = {
    "STATE": lambda _, __: dict.fromkeys(
        (*STATES, "pending", "created", "succeeded", "timeout", "crashed", "expired")
    ),
    "QUEUE": _queues,
    "QUEUES": _queues,
    "TASK": _tasks,
    "ID": _ids,
    "NAME": _names,
    "SCHEDULE": _schedules,
    "WORKFLOW": _workflow_names,
}


def _opened(ctx: click.Context) -> closing[backends.Backend]:
    """Opens the database that the command would use, as far as that is known without running the app's code."""
    url = told("typed_url", ctx)
    source = None if url else _source(ctx)
    if source is not None and source.has_url:
        url = source.url
        if url is None:
            raise LookupError("only the app's code knows the address")
    return closing(Settings.typed(url, migrate=False, busy_timeout=_PATIENCE).open(SystemClock()))


def _source(ctx: click.Context) -> Source:
    return read_source(told("app", ctx) or configured_app())
