"""Commands that act on jobs: those with the ids given, or all that fit some filters after a look at how many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dray import ops
from dray.cli.exits import Code, Failure, say
from dray.cli.filters import filters, given
from dray.cli.output import Column, put, put_json, put_list, short
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App

_CHUNK = 500  # jobs in one transaction
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do to jobs."""

    verb: str
    done: str  # what was done to them
    about: str
    why_not: str  # why it may not have happened
    states: tuple[str, ...]  # what --all means, unless states are named
    act: Callable[[App, Sequence[str]], Collection[str]]  # returns those that it did


def command(action: Action) -> click.Command:
    """``dray job VERB ID...``, or ``--all`` with filters."""

    @click.command(action.verb, help=action.about)
    @click.argument("ids", nargs=-1, metavar="[ID...]")
    @option(
        "--all", "everything", is_flag=True, help=f"All that fit; {', '.join(action.states)} if no state is named."
    )
    @filters
    @option("--yes", is_flag=True, help="Do not ask.")
    @option("--dry-run", is_flag=True, help="Only say how many it would be.")
    @shared
    def run(ids: Sequence[str], *, everything: bool, yes: bool, dry_run: bool, **options: Any) -> int:
        fit = given(options)
        if bool(ids) is everything:
            raise click.UsageError("name jobs by their ids, or give --all with filters; one of the two")
        if ids and fit:
            raise click.UsageError(f"--{next(iter(fit))} goes with --all")
        app = app_on_tables()
        chosen = _fitting(app, {"state": action.states, **fit}) if everything else named(app, ids)
        if dry_run:
            _tell(action, chosen)
            return Code.DONE
        if everything and not yes:
            _confirm(action, len(chosen))
        return _do(app, action, chosen, everything=everything)

    return run


def named(app: App, parts: Sequence[str]) -> list[str]:
    """The jobs that parts of their ids name, each once; an error if one of them is not there."""
    ids = list(dict.fromkeys(ops.job_named(app.backend, part) for part in parts))
    for job_id in ids:
        app.job(job_id)
    return ids


def _fitting(app: App, fit: dict[str, Any]) -> list[str]:
    ids: list[str] = []
    page = app.jobs(**fit, limit=_PAGE)
    while page:
        ids += [job.id for job in page]
        page = app.jobs(**fit, limit=_PAGE, after=page[-1].id)
    return ids


def _tell(action: Action, chosen: Sequence[str]) -> None:
    if wants_json():
        put_json([{"id": job_id, action.done: False} for job_id in chosen])
    else:
        put(f"would {action.verb} {counted(len(chosen), 'job')}")


def _confirm(action: Action, count: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"this would {action.verb} {counted(count, 'job')}; give --yes where nobody can be asked"
        )
    if not click.confirm(f"{action.verb.capitalize()} {counted(count, 'job')}?", err=True):
        raise Failure("nothing was done")


def _do(app: App, action: Action, chosen: Sequence[str], *, everything: bool) -> int:
    done: set[str] = set()
    for start in range(0, len(chosen), _CHUNK):
        done.update(action.act(app, chosen[start : start + _CHUNK]))
    if wants_json():
        put_json([{"id": job_id, action.done: job_id in done} for job_id in chosen])
    elif everything:
        put(f"{action.done} {len(done)} of {counted(len(chosen), 'job')}")
    else:
        happened = [{"id": job_id} for job_id in chosen if job_id in done]
        put_list(happened, [Column(action.done, "id", short)], ["id"], f"{action.done} none")
    refused = [] if everything else [job_id for job_id in chosen if job_id not in done]
    for job_id in refused:
        say(f"job {short(job_id)} was not {action.done}: {action.why_not}")
    return Code.FAILED if refused else Code.DONE
