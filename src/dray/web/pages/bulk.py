"""One action on many jobs: what it would be done to, then its progress, which can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.errors import ConfigError
from dray.instants import to_datetime
from dray.model.action import Action
from dray.model.search import Search, parse
from dray.model.values import canonical_id
from dray.ops import bulk as ops
from dray.ops import shapes
from dray.ops.bulk import STATES, Bulk, BulkVerb, Selection
from dray.web.access import OPERATORS_BULK
from dray.web.bulks import Running
from dray.web.page import Done, Form, NotFound, Page, Post, Refused, Shown, View
from dray.web.pages.jobs import ROWS, VERBS
from dray.web.visit import Visit
from dray.wording import counted

_BUDGET = 0.03  # seconds that a preview counts jobs; half of it goes into the sample
_UNKNOWN = "There is no such bulk action, or it is not yours; Actions lists what was done."
_DONE = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}


def show(visit: Visit) -> Shown:
    """The preview. Nothing is done before its form is sent; what is chosen is frozen in it."""
    verb = _verb(visit.query.get("verb", ""))
    if not visit.may(verb):
        raise NotFound(f"You may not {verb} jobs here: your role is {visit.access.role}.")
    asked, is_ticked = _asked(visit, verb)
    selection = ops.freeze(visit.core, asked, queues=visit.access.queues)
    found = ops.preview(visit.core, selection, verb, budget=_BUDGET)
    most = _most(visit)
    is_too_many = found.count > most
    data: dict[str, Any] = {
        "verb": verb,
        "done": _DONE[verb],
        "search": selection.chosen(verb).text(),
        "adds_states": [] if asked.has("state") else STATES[verb],
        "is_ticked": is_ticked,
        "back": visit.query.get("q", ""),
        "found": found,
        "most": most,
        "is_too_many": is_too_many,
        "may_be_too_many": found.is_capped and most < ops.MOST and not is_too_many,
        "as_of": visit.now,
        "now": visit.now,
        "selection": selection.token(_secret(visit)),
    }
    shape = {
        "verb": verb,
        "search": data["search"],
        "count": found.count,
        "is_capped": found.is_capped,
        "jobs": shapes.jobs(visit.core, found.jobs),
    }
    return View("bulk.html", f"{verb.capitalize()} jobs", data, shape)


def _verb(word: str) -> BulkVerb:
    if word not in STATES:
        raise ConfigError(f"verb must be one of {', '.join(STATES)}")
    return word


def _asked(visit: Visit, verb: BulkVerb) -> tuple[Search, bool]:
    """What the link or the ticked rows ask for, and whether rows were ticked."""
    ids = visit.many.get("id", ())
    if visit.query.get("all") == "1":
        return parse(visit.query.get("q", "")), False
    if not ids:
        raise ConfigError("no job is ticked: go back and tick some, or choose all that match")
    if len(ids) > ROWS:
        raise ConfigError(f"at most {ROWS} jobs can be ticked at once")
    for job_id in ids:
        if canonical_id(job_id) is None:
            raise ConfigError("a ticked job has no id")
    return Search().plus("id", *ids).plus("state", *sorted(VERBS[verb])), True


def _most(visit: Visit) -> int:
    return ops.MOST if visit.access.role == "admin" else OPERATORS_BULK


def _secret(visit: Visit) -> bytes:
    """Of one visitor: a selection cannot be given to another, who may see other queues."""
    access = visit.access
    queues = None if access.queues is None else sorted(access.queues)  # none at all is not all
    return visit.site.sign(f"selection:{access.role}:{access.user}:{queues}").encode()


def _start(verb: BulkVerb) -> Callable[[Visit, Form], Done]:
    def start(visit: Visit, form: Form) -> Done:
        try:
            selection = Selection.from_token(form.get("selection", ""), _secret(visit))
        except ConfigError as error:
            raise Refused(f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        bulk = Bulk(visit.core, selection, verb, visit.by, most=_most(visit))
        running = Running(bulk, visit.by.who, selection.chosen(verb).text(), visit.now)
        visit.site.bulks.start(running)
        return Done(f"/bulk/{running.id}", "")

    return start


def follow(visit: Visit) -> Shown:
    """How far it is. What another process runs is shown by its row in Actions."""
    running = _running(visit)
    if running is None:
        return _follow_row(visit, _row(visit))
    # First whether it is over, then how far it is: the other way round, a page that is made while it ends would say
    # "Done" beside the numbers of before, and would not be made again.
    is_over = running.is_over
    progress = running.progress
    shape: dict[str, Any] = {
        "id": running.id,
        "verb": running.bulk.verb,
        "search": running.what,
        "started_at": running.started_at,
        "is_over": is_over,
        "is_stopped": running.is_stopping,
        "error": running.error,
        "done": progress.done if progress else 0,
        "refused": progress.refused if progress else 0,
        "left": progress.left_known if progress else None,
        "refusals": progress.first_refusals if progress else {},
    }
    data: dict[str, Any] = {
        "running": {**shape, "who": running.who, "what": running.what, "is_stopping": running.is_stopping},
        "progress": progress,
        "verb": running.bulk.verb,
        "done": _DONE[running.bulk.verb],
        "now": visit.now,
        "look": running.bulk.selection.search.without("state").text(),  # they have other states now
        "total": None if progress is None or progress.is_looking else _total(progress),
    }
    topics = frozenset[str]() if is_over else None
    return View("bulk_run.html", f"{running.bulk.verb.capitalize()} jobs", data, shape, topics=topics)


def _total(progress: ops.Progress) -> int:
    return progress.done + progress.refused + progress.left_known


def _follow_row(visit: Visit, row: Action) -> View:
    note = row.note or ""
    is_stopped = note.startswith(ops.STOPPED)
    error = note.removeprefix(ops.FAILED) if note.startswith(ops.FAILED) else None
    shape: dict[str, Any] = {
        "id": row.id,
        "verb": row.verb,
        "search": row.target,
        "started_at": to_datetime(row.at),
        "is_over": row.note is not None,
        "is_stopped": is_stopped,
        "error": error,
        "done": row.done,
        "refused": row.refused,
        "left": None,
        "refusals": {},
    }
    data = {
        "running": {**shape, "who": row.who, "what": row.target, "is_stopping": is_stopped},
        "progress": ops.Progress(row.done, row.refused, 0, row.note is not None, {}, is_looking=False),
        "verb": row.verb,
        "done": _DONE[row.verb],
        "now": visit.now,
        "look": _look(row.target),
        "total": None,
    }
    return View("bulk_run.html", f"{row.verb.capitalize()} jobs", data, shape)


def _look(target: str) -> str:
    """The search that finds the jobs again; a very long one was cut when it was written down."""
    try:
        return parse(target).without("state").text()
    except ConfigError:
        return ""


def _running(visit: Visit) -> Running | None:
    """One that runs or ran in this process, if the visitor may see it."""
    running, queues = visit.site.bulks.get(visit.params["id"]), visit.access.queues
    if running is None:
        return None
    touched = running.bulk.selection.queues
    if not _is_own(visit, running.who) or not (queues is None or (touched is not None and touched <= queues)):
        raise NotFound(_UNKNOWN)
    return running


def _row(visit: Visit) -> Action:
    """Of one that another process runs. It does not say of which queues: those who see some see what they began."""
    action_id = canonical_id(visit.params["id"])
    row = None if action_id is None else ops.followed(visit.core, action_id)
    is_named = visit.access.queues is None or bool(visit.access.user)  # others of their role have no name either
    if row is None or not is_named or not _is_own(visit, row.who):
        raise NotFound(_UNKNOWN)
    return row


def _is_own(visit: Visit, who: str) -> bool:
    """Admins who see all queues see those of others too."""
    return who == visit.by.who or (visit.access.role == "admin" and visit.access.queues is None)


def stop(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - it needs nothing of it
    running = _running(visit)
    row = _row(visit) if running is None else ops.followed(visit.core, running.id)
    action_id = visit.params["id"] if row is None else row.id
    ops.stop(visit.core, action_id, visit.by.who)
    if running is not None:
        running.stop(visit.by.who)
    done = 0 if row is None else row.done
    return Done(f"/bulk/{action_id}", f"It ends after this step. {counted(done, 'job')} so far.")


PAGES: list[Page] = [
    Page("/bulk", show, "jobs"),
    Page("/bulk/{id}", follow, "jobs", frozenset({"jobs", "actions"})),
]
POSTS: list[Post] = [
    *(Post(f"/bulk/{verb}", _start(verb), verb) for verb in STATES),
    Post("/bulk/{id}/stop", stop, "retry"),
]
