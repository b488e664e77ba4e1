"""Parents that did not complete, and what to do about them: what `retry`, `result` and `dray why` tell people."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from dray.model.job import State
from dray.wording import listed

LOST_LIMIT = 1_000  # jobs that are looked at, upwards from one
_NAMED = 5  # of several in one sentence
_IN_COMMAND = 20  # of several in one command


class Culprit(NamedTuple):
    """A job that failed or was cancelled, but not because of a parent of its own: a retry of it helps."""

    id: str
    task: str
    step: str | None
    state: str
    reason: str | None
    workflow_id: str | None


class Lost(NamedTuple):
    """Why a job cannot start over, or is held."""

    culprits: tuple[Culprit, ...]  # among its parents, and theirs
    orphans: tuple[str, ...]  # jobs, itself or parents, that were cancelled with one that is not there any more


NOTHING_LOST = Lost((), ())


def obstacle(lost: Lost) -> str:
    """Which jobs are in the way: ``it runs after job 0192… (download), which failed``."""
    if lost.orphans:
        return "a job that it runs after did not complete, and has since been deleted or pruned"
    some = [f"job {each.id} ({each.step or each.task}), which {_ended(each)}" for each in lost.culprits]
    return f"it runs after {listed(some, _NAMED)}"


def advice(lost: Lost) -> str:
    """Which jobs are in the way, and what brings the job back: in Python, and on the command line."""
    return f"{obstacle(lost)}; {_remedy(lost)}"


def _remedy(lost: Lost) -> str:
    if lost.orphans:
        return "enqueue those jobs again"
    ids = [each.id for each in lost.culprits]
    count = len(ids)
    if count > _IN_COMMAND:
        return f"retry those {count:,}, and this one waits for them again: {retry_words(lost)}"
    them = "that one" if count == 1 else "those"
    text = f"retry {them}, and this one waits for {'it' if count == 1 else 'them'} again: "
    text += f'app.retry("{ids[0]}"), or ' if count == 1 else ""
    text += retry_words(lost)
    workflow = _workflow(lost)
    if workflow is None:
        return text
    steps = "all such steps" if _has_cancelled(lost) else "all failed steps"
    return f"{text}; or {steps}: {_of_workflow(lost, workflow)}"


def retry_words(lost: Lost) -> str:
    """The command that starts the culprits over, all of them; where it may start others too, with a word on that."""
    ids = [each.id for each in lost.culprits]
    if len(ids) <= _IN_COMMAND:
        return f"`dray job retry {' '.join(ids)}`"
    if (workflow := _workflow(lost)) is not None:
        return _of_workflow(lost, workflow)
    states, tasks = sorted({each.state for each in lost.culprits}), sorted({each.task for each in lost.culprits})
    named = tasks if len(tasks) <= _IN_COMMAND else []
    terms = [f"state:{state}" for state in states] + [f"task:{_quoted(task)}" for task in named]
    which = f" of {listed(named)}" if named else ""
    command = f"dray job retry --all {shlex.quote(' '.join(terms))}"
    return f"`{command}`, which starts every {' or '.join(states)} job{which} over (--dry-run counts them)"


def _quoted(name: str) -> str:
    """A name as a search takes it, and nothing else."""
    if re.fullmatch(r"[\w.-]+", name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _workflow(lost: Lost) -> str | None:
    """The workflow of all culprits, if there is one."""
    found = {each.workflow_id for each in lost.culprits}
    return found.pop() if len(found) == 1 else None


def _of_workflow(lost: Lost, workflow: str) -> str:
    if _has_cancelled(lost):
        return f"run.retry_failed(cancelled=True), or `dray workflows retry {workflow} --cancelled`"
    return f"run.retry_failed(), or `dray workflows retry {workflow}`"


def _has_cancelled(lost: Lost) -> bool:
    return any(each.state == State.CANCELLED for each in lost.culprits)


def _ended(parent: Culprit) -> str:
    words = {"user": "was cancelled", "expired": "was not started in time"}
    return words.get(parent.reason or "", "failed" if parent.state == State.FAILED else "was cancelled")
