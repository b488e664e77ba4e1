"""What `dray top` shows, and what its keys do. It neither reads a database nor draws: see `Feed` and `layout`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.cli.live import details
from dray.cli.live.panels import Panel, panels, rows
from dray.cli.output import short
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.ops.top import Snapshot

_LAST = 1 << 30
_TURNS = {"tab": 1, "right": 1, "back tab": -1, "left": -1}
_JOBS = {"running", "failures"}  # the lists of jobs


class Text(NamedTuple):
    """Something to be read, and where it comes from: looked up anew with each look."""

    title: str
    source: Callable[[], list[str]]


class Sight(NamedTuple):
    """What the database showed at the last look."""

    snapshot: Snapshot
    reading: Text | None = None  # what was being read then,
    text: list[str] | None = None  # and its lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What a view has done, by whoever can. Deeds answer with a sentence, the other two with what is to be read."""

    pause: Callable[[str], str]
    resume: Callable[[str], str]
    retry: Callable[[str], str]
    cancel: Callable[[str], str]
    job: Callable[[str], list[str]]
    logs: Callable[[str], list[str]]


@dataclass(slots=True)
class View:
    """What is on the screen. Keys come in by `press`; what they ask for goes out by `asked` and `reading`."""

    place: str
    actions: Actions
    read_only: bool
    ascii_only: bool
    sight: Sight | None = None
    said: str = ""  # how the last thing went
    is_over: bool = False
    wants_redraw: bool = False
    asked: list[Callable[[], str]] = field(default_factory=list[Callable[[], str]])
    reading: Text | None = None
    wants_text: bool = False  # `reading` is new
    scroll: int = 0
    question: tuple[str, Callable[[], str]] | None = None
    filter: str = ""
    is_typing: bool = False
    page: int = 1  # rows that there is room for
    panels: tuple[Panel, ...] = ()
    tops: dict[str, int] = field(default_factory=dict[str, int])  # panel -> the first row that is shown
    _focus: int = 1
    _selected: dict[str, Any] = field(default_factory=dict[str, Any])  # panel -> the key of its row

    def __post_init__(self) -> None:
        self.panels = panels(ascii_only=self.ascii_only)

    # Keys

    def press(self, key: str) -> None:
        """A key was pressed."""
        if key == "redraw":
            self.wants_redraw = True
        elif self.question is not None:
            self._answer(key, *self.question)
        elif self.is_typing:
            self._type(key)
        elif self.reading is not None:
            self._read(key)
        else:
            self.said = ""
            self._choose(key)

    def _answer(self, key: str, _: str, work: Callable[[], str]) -> None:
        self.question = None
        if key in {"y", "Y"}:
            self.asked.append(work)
        else:
            self.said = "nothing was done"

    def _type(self, key: str) -> None:
        self.is_typing = key not in {"enter", "escape"}
        if key == "escape":
            self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key

    def _read(self, key: str) -> None:
        if key in {"q", "escape", "left"}:
            self.reading = None
        else:
            self.scroll = max(0, self._moved(key, self.scroll))

    def _choose(self, key: str) -> None:
        deeds = {"enter": self._enter, "l": self._logs, "p": self._pause, "r": self._retry, "c": self._cancel}
        if key == "q":
            self.is_over = True
        elif key == "escape":
            self.filter = ""
        elif key == "/":
            self.is_typing = True
        elif key == "?":
            self._open("keys", details.keys)
        elif key in _TURNS:
            self._focus = (self._focus + _TURNS[key]) % len(self.panels)
        elif key in deeds:
            row = self.row
            if row is not None:
                deeds[key](row)
        else:
            self._select(self._moved(key, self.number))

    def _moved(self, key: str, number: int) -> int:
        """Where a key leads from the row of this number."""
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.page, "page down": self.page, " ": self.page}
        ends = {"home": 0, "g": 0, "end": _LAST, "G": _LAST}
        return ends.get(key, number + steps.get(key, 0))

    # Rows

    @property
    def panel(self) -> Panel:
        """The list in hand."""
        return self.panels[self._focus]

    def rows(self, panel: Panel) -> list[dict[str, Any]]:
        return [] if self.sight is None else rows(self.sight.snapshot, panel, self.filter)

    @property
    def number(self) -> int:
        """Which row of the list in hand is selected: the one with the key that was; the first, if that is gone."""
        panel, key = self.panel, self._selected.get(self.panel.name)
        return next((n for n, row in enumerate(self.rows(panel)) if row[panel.key] == key), 0)

    @property
    def row(self) -> dict[str, Any] | None:
        found = self.rows(self.panel)
        return found[self.number] if found else None

    def _select(self, number: int) -> None:
        found = self.rows(self.panel)
        if found:
            self._selected[self.panel.name] = found[max(0, min(number, len(found) - 1))][self.panel.key]

    # Deeds

    def _open(self, title: str, source: Callable[[], list[str]]) -> None:
        self.reading, self.scroll, self.wants_text = Text(title, source), 0, True

    def _enter(self, row: dict[str, Any]) -> None:
        if self.panel.name in _JOBS:
            self._open(f"job {row['id']}", lambda: self.actions.job(row["id"]))
        else:
            self._open(f"{self.panel.name}: {escape_control(row['name'])}", lambda: details.things(row))

    def _logs(self, row: dict[str, Any]) -> None:
        if self.panel.name in _JOBS:
            self._open(f"logs of job {row['id']}", lambda: self.actions.logs(row["id"]))
        else:
            self.said = "select a job: only jobs have logs"

    def _pause(self, row: dict[str, Any]) -> None:
        queue = row["name"] if self.panel.name == "queues" else row.get("queue")
        if queue is None:
            self.said = "select a queue, or a job of it"
        elif self._may_act():
            act = self.actions.resume if self._is_paused(queue) else self.actions.pause
            self.asked.append(lambda: act(queue))

    def _is_paused(self, queue: str) -> bool:
        queues = [] if self.sight is None else self.sight.snapshot.queues
        return any(each.name == queue and each.paused_at is not None for each in queues)

    def _retry(self, row: dict[str, Any]) -> None:
        if self.panel.name != "failures":
            self.said = "select a failed job"
        elif self._may_act():
            self.asked.append(lambda: self.actions.retry(row["id"]))

    def _cancel(self, row: dict[str, Any]) -> None:
        if self.panel.name != "running":
            self.said = "select a running job"
        elif self._may_act():
            question = f"Cancel job {short(row['id'])} ({escape_control(row['task'])})? y/n"
            self.question = question, lambda: self.actions.cancel(row["id"])

    def _may_act(self) -> bool:
        self.said = "this view is read-only" if self.read_only else ""
        return not self.read_only
