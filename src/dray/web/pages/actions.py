"""What people did: who, when, by which way, to what, and with what success."""

from __future__ import annotations

from typing import Any, get_args

from dray.backends.store.pages import WINDOW
from dray.errors import ConfigError
from dray.model.action import Action, Kind
from dray.model.values import canonical_id, shown
from dray.ops import shapes
from dray.web.page import Page, Post, View
from dray.web.paging import cursor
from dray.web.show import in_path
from dray.web.visit import Visit
from dray.wording import with_short_ids

_ROWS = 50
_PLACES = {
    "job": "/jobs/",
    "workflow": "/workflows/",
    "queue": "/queues/",
    "task": "/tasks/",
    "schedule": "/schedules/",
}
_KINDS: tuple[str, ...] = get_args(Kind)


def show(visit: Visit) -> View:
    who, kind = visit.query.get("who", "").strip()[:200] or None, visit.query.get("kind") or None
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"there is no kind {shown(kind)}; known are {', '.join(_KINDS)}")
    found = visit.backend.pages.actions(limit=_ROWS, before=cursor(visit, "before"), who=who, kind=kind)
    listed = [shapes.action(each) for each in found.rows]
    data: dict[str, Any] = {
        "actions": listed,
        "links": {each.id: _link(visit, each) for each in found.rows},
        "targets": {each.id: with_short_ids(each.target) for each in found.rows},
        "who": who,
        "kind": kind,
        "kinds": _KINDS,
        "next": found.next,
        "is_cut": found.next is not None and len(found.rows) < _ROWS,
        "window": WINDOW,
        "now": visit.now,
    }
    return View("actions.html", "Actions", data, {"actions": listed, "next": found.next})


def _link(visit: Visit, action: Action) -> str | None:
    """Where to look at what an action was about."""
    if action.kind in _PLACES:
        return visit.url(_PLACES[action.kind] + in_path(action.target))
    if action.kind == "jobs" and canonical_id(action.target.split(" ", 1)[0]) is None:
        return visit.url("/jobs", q=action.target)  # the words of a search
    return None


PAGES: list[Page] = [Page("/actions", show, "actions", frozenset({"actions"}), is_whole=True)]
POSTS: list[Post] = []
