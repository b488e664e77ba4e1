"""What a page and an action are: plain functions of a visit. `dashboard.py` makes routes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dray.web.visit import Visit

Form: TypeAlias = Mapping[str, str]  # of a name that was given twice, the last


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows: a template and what it needs, and the same as JSON in the shapes of the command line."""

    template: str
    title: str
    data: dict[str, Any]
    shape: Any
    status: int = 200
    topics: frozenset[str] | None = None  # instead of the page's own
    nav: str = ""  # of what a POST shows


@dataclass(frozen=True, slots=True)
class Download:
    """A file instead of a page, sent a part at a time: its size is not known before."""

    name: str
    media_type: str
    parts: Iterable[str]


class Goto(NamedTuple):
    """Another page instead of this one. `where` is a path of the dashboard."""

    where: str


Shown: TypeAlias = View | Download | Goto


@dataclass(frozen=True, slots=True)
class Page:
    """`path` as Starlette has it (`/jobs/{id}`). The same with `.json` is the page as JSON.

    `nav`: the entry of the menu that is marked. `topics`: what the page shows; it is fetched again when the stream
    says that one of them has changed (see `feed.py`): jobs, queues, workers, schedules, workflows, logs, actions.
    `is_whole`: of the whole database: not for visitors who may see some queues alone. `verb`: the page is for those
    alone who may do this.
    """

    path: str
    show: Callable[[Visit], Shown]
    nav: str
    topics: frozenset[str] = field(default_factory=frozenset[str])
    is_whole: bool = False
    verb: str | None = None


class Done(NamedTuple):
    """Where to go after an action, and what to say there. `where` is a path of the dashboard."""

    where: str
    said: str


@dataclass(frozen=True, slots=True)
class Post:
    """An action. `verb` says who may (`access.py`); method, token and Origin are checked before `do`.

    A View is shown at once, for what must not be in an address or be seen again: revealed arguments.
    """

    path: str
    do: Callable[[Visit, Form], Done | View]
    verb: str
    is_whole: bool = False


class NotFound(Exception):
    """There is no such thing, or the visitor may not see it; the text is shown."""


class Refused(Exception):
    """An action that cannot be done; the text is shown, with status 409."""
