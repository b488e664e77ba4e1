"""``dray tail`` and ``dray top``: what happens, as lines that follow each other, and as a screen with keys to act."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from dray.app_interface import core_of
from dray.backends.watch import Watch
from dray.cli.apps import app_on_tables
from dray.cli.cells import ago, cell, short
from dray.cli.exits import say
from dray.cli.live.following import Stopping, stopping
from dray.cli.options import command, option, wants_json
from dray.cli.output import COLOURS, has_colours, is_dumb, is_terminal, json_line, line, put
from dray.cli.parsing import since, state_option
from dray.errors import StorageError
from dray.ops import listing
from dray.ops.tail import Event, Tail, Wanted
from dray.wording import attempt_of, span

_LOOK = 0.5  # seconds after which log lines on PostgreSQL are seen, which no watch tells of
_REST, _LONGEST_REST = 0.05, 0.2  # seconds between two looks
_SHARE = 4  # the rest is this many times as long as the look took, within these bounds
_OUTAGE = 1.0


@command()
@option("--events/--no-events", default=True, help="Events of jobs, workers and queues.")
@option("--logs/--no-logs", default=True, help="Lines logged inside jobs.")
@state_option(help="Only jobs that enter this state (repeat for several).")
@option("--queue", help="Only of this queue.")
@option("--task", help="Only of this task.")
@option("--job", "part", metavar="ID", help="Only of this job.")
@option("--since", type=since, metavar="TIME", help="Begin at this time: 10m, or 2026-11-15T08:00.")
@option("-n", "--lines", type=click.IntRange(1), metavar="N", help="Begin with the last N events and lines.")
@option("--jsonl", is_flag=True, help="One JSON object per line, as --json does.")
@option("--until-idle", is_flag=True, help="End when nothing runs and nothing is ready.")
def tail(
    state: tuple[str, ...],
    part: str | None,
    since: Any,
    lines: int | None,
    *,
    events: bool,
    logs: bool,
    jsonl: bool,
    until_idle: bool,
    **options: Any,
) -> None:
    """Follow what happens, until Ctrl-C: jobs that are enqueued, start and end, and what they log.

    In a pipe: at, event, job, task, queue, worker, and the error, the logged line or the worker's name, separated by
    tabs.
    """
    app = app_on_tables()
    fit = listing.job_filter(core_of(app).backend, state=state or None, since=since, **options)
    if not events and not logs:
        raise click.UsageError("--no-events and --no-logs leave nothing to follow")
    wanted = Wanted(
        queue=fit.queue,
        task=fit.task,
        job=None if part is None else app.job(listing.job_named(core_of(app).backend, part)).id,
        states=fit.states if state else None,
        reason=fit.reason,
        events=events,
        logs=logs,
    )
    shown = json_line if jsonl or wants_json() else _words if is_terminal() else _values
    # The watch comes before the first look: it tells of changes after that.
    with stopping() as stop, stop.watching(app) as watch:
        follower = _Follower(Tail(core_of(app).backend, logs=logs), watch, stop, wanted, shown)
        follower.begin(fit.since, lines)
        if is_terminal():
            say(f"following {core_of(app).settings.place}; Ctrl-C ends")
        follower.go_on(until_idle=until_idle)


@dataclass(slots=True)
class _Follower:
    """Looks when something may have happened, and writes the events."""

    _tail: Tail
    _watch: Watch
    _stop: Stopping
    _wanted: Wanted
    _shown: Callable[[Event], str]

    def begin(self, since: int | None, lines: int | None) -> None:
        if since is None and lines is not None:
            since = self._tail.since_last(lines)
        last: deque[Event] = deque(maxlen=lines)
        for found in self._tail.begin(since):
            if lines is None:
                self._tell(found)
            else:
                last.extend(event for event in found if self._wanted.takes(event))
            if self._stop.wait(0):
                return
        self._tell(last)

    def go_on(self, *, until_idle: bool) -> None:
        while not self._stop.wait(0):
            began = time.monotonic()
            found = self._look()
            took = time.monotonic() - began
            self._tell(found)
            if self._tail.is_behind:
                continue
            if until_idle and self._tail.is_idle and not found:
                return
            if self._stop.wait(min(max(_REST, _SHARE * took), _LONGEST_REST)):
                return
            self._watch.wait(_LOOK)

    def _look(self) -> list[Event]:
        """Returns new events. Retries while the database cannot be reached, and misses none."""
        is_said = False
        while True:
            try:
                found = self._tail.look()
            except StorageError as error:
                if not is_said:
                    say(f"the database does not answer: {error}; trying again")
                is_said = True
                if self._stop.wait(_OUTAGE):
                    return []
                continue
            if is_said:
                say("the database is back")
            return found

    def _tell(self, found: Iterable[Event]) -> None:
        for event in found:
            if self._wanted.takes(event):
                with self._stop.writing():
                    put(self._shown(event))


def _values(event: Event) -> str:
    text = next((event[name] for name in ("error", "message", "name") if event.get(name)), None)
    return line(*(event.get(name) for name in ("at", "event", "job", "task", "queue", "worker")), text)


def _words(event: Event) -> str:
    kind = event["event"]
    when = f"{event['at'].astimezone():%H:%M:%S.%f}"[:-3]
    who = f"{short(event['job'])} {cell(event['task'])}" if "job" in event else cell(event.get("queue") or "")
    words = f"{when} {kind.replace('_', ' '):<9} {who} {cell(_text(event))}".rstrip()
    colour = _COLOURS.get(event["level"].lower() if kind == "log" else kind)
    return click.style(words, fg=colour) if colour and has_colours() else words


_COLOURS = COLOURS | {
    "retrying": "yellow",
    "started": "cyan",
    "worker_died": "red",
    "queue_paused": "yellow",
    "warning": "yellow",
    "error": "red",
    "critical": "red",
}


_OF_ATTEMPTS = {"started", "retrying"}


def _text(event: Event) -> str:
    kind = event["event"]
    if kind == "log":
        return f"{event['level'].lower()} {event['logger']}: {event['message']}"
    if kind.startswith("worker_"):
        return f"{event['name']} (process {event['pid']} on {event['host']})"
    if kind.startswith("queue_"):
        return ""
    words = [
        f"in {event['queue']}" if kind == "enqueued" else "",
        attempt_of(event["attempt"], event["max_attempts"], event["claim"]) if kind in _OF_ATTEMPTS else "",
        f"({event['reason']})" if event["reason"] else "",
        f"after {span(event['seconds'])}" if event["seconds"] is not None else "",
        f"runs {ago(event['run_at'], datetime.now(UTC))}" if event["run_at"] else "",
    ]
    said = " ".join(word for word in words if word)
    return f"{said}: {event['error']}".removeprefix(": ") if event["error"] else said


@command()
@option("--read-only", is_flag=True, help="Only look: no key changes anything.")
def top(*, read_only: bool) -> None:
    """A live view: queues, running jobs with their progress, failures, workers and rates. `?` shows the keys."""
    if wants_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top is for a terminal; programs use `dray stats --json` or `dray tail --jsonl`")
    if is_dumb():
        raise click.UsageError("top needs a terminal that can move its cursor; try `dray stats --watch`")
    from dray.cli.live.top import run  # noqa: PLC0415 - rich and termios, for terminals only

    run(app_on_tables(), read_only=read_only)
