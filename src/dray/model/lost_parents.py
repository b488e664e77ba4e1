"""Parents that did not complete, and what to do about them: what `retry`, `result` and `dray why` tell people."""

from __future__ import annotations

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
    them = "that one" if len(ids) == 1 else "those"
    text = f"retry {them}, and this one waits for {'it' if len(ids) == 1 else 'them'} again: "
    text += f'app.retry("{ids[0]}"), or ' if len(ids) == 1 else ""
    text += f"`{retry_command(lost)}`"
    workflow = lost.culprits[0].workflow_id
    if workflow is None or any(each.workflow_id != workflow for each in lost.culprits):
        return text
    if any(each.state == State.CANCELLED for each in lost.culprits):
        text += "; or all such steps: run.retry_failed(cancelled=True), or "
        return f"{text}`dray workflows retry {workflow} --cancelled`"
    return f"{text}; or all failed steps: run.retry_failed(), or `dray workflows retry {workflow}`"


def retry_command(lost: Lost) -> str:
    """The command that starts the culprits over; of very many, the first."""
    return f"dray job retry {' '.join(each.id for each in lost.culprits[:_IN_COMMAND])}"


def _ended(parent: Culprit) -> str:
    words = {"user": "was cancelled", "expired": "was not started in time"}
    return words.get(parent.reason or "", "failed" if parent.state == State.FAILED else "was cancelled")
