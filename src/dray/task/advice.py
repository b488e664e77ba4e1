"""Calls that people bring from other queues, or with an option in the wrong place: what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dray.model.values import shown
from dray.task.checks import meant_option
from dray.task.job_options import JobKeywords

if TYPE_CHECKING:
    from dray.task.task import Task

Verb: TypeAlias = Literal["enqueue", "enqueue_many", "add"]

_ENQUEUE, _USING = "{0}.enqueue(...)", "{0}.using(delay=5, queue=...).enqueue(...)"
_LATER, _MANY = "{0}.using(delay=5).enqueue(...)", "{0}.enqueue_many([...])"
_STEP, _HERE = "app.workflow(name).add({0}, ...)", "{0}(...)"

# What tasks of Celery, Dramatiq, Huey, RQ, Procrastinate, arq and taskiq have.
_ELSEWHERE = {
    **dict.fromkeys(["delay", "send", "push", "defer", "defer_async", "kiq", "submit", "spawn", "async_"], _ENQUEUE),
    **dict.fromkeys(["apply_async", "send_with_options", "configure", "kicker", "options", "set", "opts"], _USING),
    **dict.fromkeys(["schedule", "enqueue_in", "enqueue_at", "enqueue_job"], _LATER),
    **dict.fromkeys(["map", "starmap", "chunks", "batch_defer", "batch"], _MANY),
    **dict.fromkeys(["s", "si", "signature", "subtask", "message", "pipeline", "then", "chain"], _STEP),
    **dict.fromkeys(["apply", "call_local", "run", "fn", "func"], _HERE),
}


def of_another_queue(name: str, task: Task[..., Any]) -> str | None:
    """What to say of an attribute that a task does not have; None: nothing is known of it."""
    words = _ELSEWHERE.get(name)
    if words is None:
        return None
    return f"a task of Dray has no {name!r}; write {words.format(task.called)}"


def misplaced_option(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], verb: Verb) -> str | None:
    """What to write instead of a call that gives options of the job to the function; None: it does not."""
    known = JobKeywords.__optional_keys__
    meant = {name: option for name in kwargs if (option := meant_option(name, known)) in known}
    meant = {name: option for name, option in meant.items() if not task.signature.takes(name)}
    if not meant:
        return None
    options = ", ".join(f"{option}={shown(kwargs[name])}" for name, option in meant.items())
    rest = [shown(arg) for arg in args] + [f"{name}={shown(kwargs[name])}" for name in kwargs if name not in meant]
    if rest and (task.options.redact or not task.options.keep_args):
        rest = ["..."]  # they may be secret
    using = f"{task.called}.using({options})"
    call = {
        "enqueue": f"{using}.enqueue({', '.join(rest)})",
        "enqueue_many": f"{using}.enqueue_many([...])",
        "add": f"add({', '.join([using, *rest])})",
    }
    which = "which is" if len(meant) == 1 else "which are"
    return f"{task.name} takes no {' and no '.join(meant)}, {which} for the job; use {call[verb]}"


def no_options(given: Iterable[str]) -> list[str]:
    """Those that are no options of a job, here or elsewhere."""
    known = JobKeywords.__optional_keys__
    return [name for name in given if meant_option(name, known) not in known]
