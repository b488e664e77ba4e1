"""The state of `dray top`, its lists, and what its keys do. `layout` draws it, `top` reads the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dray.app import App
from dray.app_interface import core_of
from dray.cli.apps import person
from dray.cli.cells import Shape, cell, paused, queues, relative, seconds, short, step_of
from dray.cli.commands.job import described
from dray.cli.output import TRIES, Column, bar
from dray.ops import acting, shapes
from dray.ops.top import COUNTED, Snapshot
from dray.ops.why import why
from dray.sanitize import escape_control
from dray.wording import span

_KEYS = """\
tab, shift-tab    next list, previous list
up, down, j, k    row above, row below; page up, page down, home, end
enter             show all of it: a job with its attempts, and why it waits or failed
l                 show what the job logged
p                 pause the queue, or resume it
r                 start the failed job over
c                 cancel the job (asks)
/                 filter rows by a text; escape: all rows
ctrl-l            redraw the screen
?                 this help
q                 quit; in a text: back"""
_LAST = 1 << 30
_TURNS = {"tab": 1, "right": 1, "back tab": -1, "left": -1}
_JOBS = {"running", "failures"}  # the lists of jobs


def count_of(jobs: int, _: Shape | None = None) -> str:
    """Returns a number of jobs; counting stops at a limit."""
    return f"{jobs:,}+" if jobs >= COUNTED else f"{jobs:,}"


def _for(value: Any, shape: Shape) -> str:
    return "" if value is None else span(max(0.0, (shape["now"] - value).total_seconds()))


def _progress(value: Any, _: Shape) -> str:
    return "" if value is None else f"{bar(value / 100, 10)} {value:3.0f}%"


def _first_line(value: Any, shape: Shape) -> str:
    lines = str(value or shape["reason"] or "").splitlines()
    return lines[0] if lines else ""


STEP = Column("step", "workflow", step_of, is_elastic=True, rank=5)
PANELS = {  # the columns of each list; the value of the first is unique
    "queues": (
        Column("queue", "name", is_elastic=True),
        Column("queued", "queued", count_of, is_number=True),
        Column("running", "running", count_of, is_number=True, rank=1),
        Column("oldest", "oldest", seconds, is_number=True, rank=2),
        Column("", "paused_at", paused, is_elastic=True, rank=1),
    ),
    "running": (
        Column("id", "id", short),
        Column("task", "task", is_elastic=True),
        Column("for", "started_at", _for, is_number=True, rank=1),
        Column("progress", "progress", _progress, rank=2),
        Column("queue", "queue", is_elastic=True, rank=4),
        STEP,
        Column("attempt", "attempt", TRIES, rank=6),
        Column("worker", "worker_id", short, rank=5),
        Column("", "progress_message", is_elastic=True, rank=3),
    ),
    "failures": (
        Column("id", "id", short),
        Column("task", "task", is_elastic=True),
        Column("when", "finished_at", relative, rank=1),
        Column("queue", "queue", is_elastic=True, rank=4),
        STEP,
        Column("attempt", "attempt", TRIES, rank=5),
        Column("error", "error", _first_line, is_elastic=True, rank=2),
    ),
    "workers": (
        Column("id", "id", short),
        Column("name", "name", is_elastic=True),
        Column("running", "running", "{running}/{concurrency}", is_number=True, rank=1),
        Column("state", "state", rank=2),
        Column("queues", "queues", queues, is_elastic=True, rank=4),
        Column("started", "started_at", relative, rank=5),
        Column("seen", "last_seen_at", relative, rank=3),
    ),
}


class Document(NamedTuple):
    """A text to read, and the function that looks it up each time the screen is refreshed."""

    title: str
    source: Callable[[], list[str]]


class Contents(NamedTuple):
    """What the database had at the last look."""

    snapshot: Snapshot
    reading: Document | None = None  # the open document,
    text: list[str] | None = None  # and its lines


@dataclass(slots=True)
class View:
    """The state of the screen, which keys change by `press`."""

    app: App
    read_only: bool
    contents: Contents
    ask: Callable[[Callable[[], str]], None]  # runs an action, which returns a sentence, on the database's thread
    look_now: Callable[[], None]  # has that thread read the database again
    said: str = ""  # the outcome of the last action
    is_over: bool = False
    reading: Document | None = None
    scroll: int = 0
    question: tuple[str, Callable[[], str]] | None = None
    filter: str = ""
    is_typing: bool = False
    page: int = 1  # rows that fit
    tops: dict[str, int] = field(default_factory=dict[str, int])  # panel -> its first visible row
    _focus: int = 1
    _selected: dict[str, Any] = field(default_factory=dict[str, Any])  # panel -> the key of its selected row

    def press(self, key: str) -> None:
        if self.question is not None:
            (_, work), self.question = self.question, None
            if key in {"y", "Y"}:
                self.ask(work)
            else:
                self.said = "nothing was done"
        elif self.is_typing:
            self._type(key)
        elif self.reading is None:
            self.said = ""
            self._choose(key)
        elif key in {"q", "escape", "left"}:
            self.reading = None
        else:
            self.scroll = max(0, self._moved(key, self.scroll))

    def _type(self, key: str) -> None:
        self.is_typing = key not in {"enter", "escape"}
        if key == "escape":
            self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1:
            self.filter += key

    def _choose(self, key: str) -> None:
        actions = {"enter": self._enter, "l": self._logs, "p": self._pause, "r": self._retry, "c": self._cancel}
        if key == "q":
            self.is_over = True
        elif key == "escape":
            self.filter = ""
        elif key == "/":
            self.is_typing = True
        elif key == "?":
            self._open("keys", _KEYS.splitlines)
        elif key in _TURNS:
            self._focus = (self._focus + _TURNS[key]) % len(PANELS)
        elif found := self.rows(self.panel):
            if key in actions:
                actions[key](found[self.number])
            else:
                number = max(0, min(self._moved(key, self.number), len(found) - 1))
                self._selected[self.panel] = found[number][self._key]

    def _moved(self, key: str, number: int) -> int:
        """Returns the row that a key leads to, from the row of this number."""
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.page, "page down": self.page, " ": self.page}
        ends = {"home": 0, "g": 0, "end": _LAST, "G": _LAST}
        return ends.get(key, number + steps.get(key, 0))

    @property
    def panel(self) -> str:
        """The list that has the focus."""
        return list(PANELS)[self._focus]

    @property
    def _key(self) -> str:
        return PANELS[self.panel][0].key

    def rows(self, panel: str) -> list[dict[str, Any]]:
        """The rows of a list that contain the text of the filter."""
        snapshot, wanted = self.contents.snapshot, self.filter.lower()
        return [
            {**row, "now": snapshot.at}
            for row in getattr(snapshot, panel)
            if any(isinstance(value, str) and wanted in value.lower() for value in row.values())
        ]

    @property
    def number(self) -> int:
        """The number of the selected row in the focused list: the row with the selected key, else the first."""
        selected = self._selected.get(self.panel)
        return next((n for n, row in enumerate(self.rows(self.panel)) if row[self._key] == selected), 0)

    def _open(self, title: str, source: Callable[[], list[str]]) -> None:
        self.reading, self.scroll = Document(title, source), 0
        self.look_now()

    def _enter(self, row: dict[str, Any]) -> None:
        if self.panel in _JOBS:
            self._open(f"job {row['id']}", lambda: _job_lines(self.app, row["id"]))
        else:
            self._open(f"{self.panel}: {escape_control(row['name'])}", lambda: _row_lines(row))

    def _logs(self, row: dict[str, Any]) -> None:
        if self.panel in _JOBS:
            self._open(f"logs of job {row['id']}", lambda: _log_lines(self.app, row["id"]))
        else:
            self.said = "select a job: only jobs have logs"

    def _pause(self, row: dict[str, Any]) -> None:
        queue = row["name"] if self.panel == "queues" else row.get("queue")
        if queue is None:
            self.said = "select a queue, or a job of it"
        elif self._may_act():
            is_paused = any(each["name"] == queue and each["paused_at"] for each in self.contents.snapshot.queues)
            act = acting.resume_queue if is_paused else acting.pause_queue
            done, otherwise = ("goes on", "was not paused") if is_paused else ("is paused", "was paused already")
            core = core_of(self.app)
            self.ask(lambda: f"queue {queue} {done if act(core, queue, person()) else otherwise}")

    def _retry(self, row: dict[str, Any]) -> None:
        if self.panel != "failures":
            self.said = "select a failed job"
        elif self._may_act():
            job_id = row["id"]
            self.ask(lambda: f"job {short(job_id)} {_retried(self.app, job_id)}")

    def _cancel(self, row: dict[str, Any]) -> None:
        if self.panel != "running":
            self.said = "select a running job"
        elif self._may_act():
            job_id, question = row["id"], f"Cancel job {short(row['id'])} ({escape_control(row['task'])})? y/n"
            self.question = (question, lambda: f"job {short(job_id)} {_cancelled(self.app, job_id)}")

    def _may_act(self) -> bool:
        self.said = "this view is read-only" if self.read_only else ""
        return not self.read_only


def _retried(app: App, job_id: str) -> str:
    refused = acting.retry(core_of(app), [job_id], person()).refused
    return f"was not retried: {refused[job_id]}" if refused else "starts over"


def _cancelled(app: App, job_id: str) -> str:
    refused = acting.cancel(core_of(app), [job_id], person()).refused
    if refused:
        return f"was not cancelled: {refused[job_id]}"
    return "is cancelled" if app.job(job_id).state == "cancelled" else "is asked to stop"


def _job_lines(app: App, job_id: str) -> list[str]:
    """Returns what `dray why` and `dray job show` say about a job."""
    found = described(shapes.whole_jobs(core_of(app), [job_id])[0])
    causes = why(core_of(app).backend, job_id).causes
    return [*(escape_control(cause.text) for cause in causes), "", *found]


def _log_lines(app: App, job_id: str) -> list[str]:
    found = [
        f"{line.at.astimezone():%H:%M:%S} {cell(line.level).lower():<7} {cell(line.logger)}: {cell(line.message)}"
        for line in app.job(job_id).logs(limit=1_000)
    ]
    return found or ["nothing was logged"]


def _row_lines(row: dict[str, Any]) -> list[str]:
    there = {name.replace("_", " "): value for name, value in row.items() if name != "now"}
    width = max(map(len, there))
    return [f"{name:<{width}}  {cell(value)}" for name, value in there.items()]
