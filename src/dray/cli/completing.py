"""What a shell offers when somebody presses Tab: commands and options by click, values from database and code.

It is asked in the middle of typing, so it is quick (where values take more than a second, it offers none), silent
whatever goes wrong, harmless (it makes no file and runs nothing of the user's), and short.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from dray.cli.shared import told

if TYPE_CHECKING:
    from dray.backends import Backend

_MOST = 50  # values
_SECONDS = 1.0
_PATIENCE = 0.5  # seconds for a database that is locked
_SHORT = 8  # characters of an id, from its end


def complete(root: click.Group) -> NoReturn:
    """Answers the shell and ends the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # a word in the middle of a half-typed line helps nobody
    root.main([], prog_name="dray")
    raise AssertionError("click ends the process")


def equip(command: click.Command) -> None:
    """Has the parameters of a command offer their values."""
    for parameter in command.params:
        words = [(text or "").strip("[].").upper() for text in (parameter.metavar, parameter.name)]
        word = next((word for word in words if word in _WORDS), None)
        if word is not None:
            parameter.type = _Values(word)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            equip(each)


class _Values(click.types.StringParamType):
    """Text of which some values are known."""

    def __init__(self, word: str) -> None:
        self._word = word

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - as click calls it
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        timer = threading.Timer(_SECONDS, os._exit, [0])
        timer.daemon = True
        timer.start()
        try:
            found = list(_WORDS[self._word](ctx, incomplete))
        except Exception:  # noqa: BLE001 - no database, no such file, code that cannot be read: nothing is offered
            return []
        finally:
            timer.cancel()
        fitting = [(value, about) for value, about in found if value.startswith(incomplete)]
        return [CompletionItem(value, help=about) for value, about in fitting[:_MOST]]


_Offer = Iterable[tuple[str, str | None]]


def _states(_: click.Context, __: str) -> _Offer:
    from dray.cli.states import STATES  # noqa: PLC0415

    for state in (*STATES, "pending", "created", "succeeded", "timeout", "crashed", "expired"):
        yield state, None


def _queues(ctx: click.Context, _: str) -> _Offer:
    with _opened(ctx) as backend:
        for name in sorted(
            {queue.name for queue in backend.queues.all()} | set(backend.history.stats(1_000_000).counts)
        ):
            yield name, None


def _tasks(ctx: click.Context, _: str) -> _Offer:
    names = set(_source(ctx).tasks)
    try:
        with _opened(ctx) as backend:
            names.update(*(worker.tasks for worker in backend.workers.all(_MOST)))
    except Exception:  # noqa: BLE001 - what the code says is something, too
        names = set(_source(ctx).tasks)
    for name in sorted(names):
        yield name, None


def _ids(ctx: click.Context, incomplete: str) -> _Offer:
    """By their last characters, as they are shown; whole, where more of one is typed."""
    kind = ctx.command_path.split()[1]
    with _opened(ctx) as backend:
        found = _FINDERS.get(kind, _jobs)(backend, incomplete)
    for each, about in found:
        yield (each if len(incomplete) > _SHORT else each[-_SHORT:]), about


def _jobs(backend: Backend, part: str) -> list[tuple[str, str]]:
    if not part:
        found = backend.jobs.newest(limit=_MOST)
    else:
        ids = backend.jobs.find(part.lower(), _MOST)
        found = backend.jobs.get(ids) if ids else []
    return [(job.id, f"{job.task} {job.state}") for job in found]


def _workflows(backend: Backend, part: str) -> list[tuple[str, str]]:
    if part:
        return [(found, "") for found in backend.workflows.find(part.lower(), _MOST)]
    return [(found.id, found.name) for found in backend.workflows.newest(limit=_MOST)]


def _workers(backend: Backend, _: str) -> list[tuple[str, str]]:
    return [(worker.id, worker.name) for worker in backend.workers.all(_MOST) if worker.stopped_at is None]


_FINDERS: dict[str, Callable[[Any, str], list[tuple[str, str]]]] = {"workflows": _workflows, "workers": _workers}


def _names(ctx: click.Context, _: str) -> _Offer:
    if not ctx.command_path.startswith("dray schedules"):
        return
    with _opened(ctx) as backend:
        for schedule in backend.schedules.all():
            yield schedule.name, schedule.task


_WORDS: dict[str, Callable[[click.Context, str], _Offer]] = {
    "STATE": _states,
    "QUEUE": _queues,
    "QUEUES": _queues,
    "TASK": _tasks,
    "ID": _ids,
    "NAME": _names,
}


class _opened:  # noqa: N801 - read as a verb in a with
    """The database that the command would use, as far as it can be known without running the app's code."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    def __enter__(self) -> Backend:
        from dray.clock import SystemClock  # noqa: PLC0415
        from dray.settings import Settings  # noqa: PLC0415

        url = told("typed_url", self._ctx)
        source = None if url else _source(self._ctx)
        if source is not None and source.has_url:
            url = source.url
            if url is None:
                raise LookupError("only the app's code knows")
        settings = replace(Settings.of(url), migrate=False, busy_timeout=_PATIENCE)
        self._backend = settings.open(SystemClock())
        return self._backend

    def __exit__(self, *_: object) -> None:
        self._backend.close()


def _source(ctx: click.Context) -> Any:
    from dray.cli.finding import configured  # noqa: PLC0415
    from dray.cli.source import read_source  # noqa: PLC0415

    return read_source(told("app", ctx) or configured())
