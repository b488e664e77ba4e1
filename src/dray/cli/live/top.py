"""Runs `dray top`: a thread reads the database, this one draws and handles keys."""

from __future__ import annotations

import time

from dray import ops
from dray.app import App
from dray.cli.live import layout
from dray.cli.live.feed import Feed
from dray.cli.live.paint import Brush
from dray.cli.live.screen import Screen
from dray.cli.live.view import Actions, Contents, View, job_lines, log_lines
from dray.cli.output import has_colours, is_ascii_only, short
from dray.errors import UnknownJob
from dray.model.job import CancelResult
from dray.ops.top import Top

_SECOND = 1.0
_CANCELLED = {
    CancelResult.CANCELLED: "is cancelled",
    CancelResult.REQUESTED: "is asked to stop",
    CancelResult.FINAL: "had ended already",
    CancelResult.UNKNOWN: "is gone",
}


def run(app: App, *, read_only: bool) -> None:
    """Shows the view until a key or a signal ends it."""
    brush = Brush(colours=has_colours(), ascii_only=is_ascii_only())
    view = View(app.settings.place, _actions(app), read_only, brush.ascii_only)
    source = Top(app.backend)
    view.contents = Contents(source.look())  # an error of the database is reported before the screen is taken

    def look() -> Contents:
        snapshot, reading = source.look(), view.reading
        if reading is None:
            return Contents(snapshot)
        try:
            return Contents(snapshot, reading, reading.source())
        except UnknownJob as error:
            return Contents(snapshot, reading, [str(error)])

    screen = Screen()
    with screen.taken(), Feed(app, look, screen.bell.ring) as feed:
        _loop(view, brush, screen, feed)


def _loop(view: View, brush: Brush, screen: Screen, feed: Feed[Contents]) -> None:
    shown, seen_at = None, time.monotonic()
    while not (view.is_over or screen.is_over):
        feed.check()
        latest = feed.latest
        if latest is not None and latest is not shown:
            view.contents, shown, seen_at = latest, latest, time.monotonic()
        if feed.said:
            view.said = feed.said.popleft()
        width, height = screen.size
        problem = None if feed.problem is None else f"{_silent(feed.problem_since)}: {feed.problem}"
        # Whole seconds: the ages on the screen tick together, and between two ticks nothing is sent.
        ahead = float(int(time.monotonic() - seen_at))
        screen.draw([brush.render(line, width) for line in layout.screen(view, width, height, problem, ahead)])
        for key in screen.wait(_SECOND):
            view.press(key)
        _hand_over(view, screen, feed)


def _hand_over(view: View, screen: Screen, feed: Feed[Contents]) -> None:
    """Passes on what keys have asked for."""
    for work in view.asked:
        feed.ask(work)
    view.asked.clear()
    if view.wants_text:
        feed.look_now()
    if view.wants_redraw:
        screen.redraw()
    view.wants_text = view.wants_redraw = False


def _silent(since: float) -> str:
    return f"no answer for {int(time.monotonic() - since)}s"


def _actions(app: App) -> Actions:
    def pause(queue: str) -> str:
        return f"queue {queue} is paused" if app.pause(queue) else f"queue {queue} was paused already"

    def resume(queue: str) -> str:
        return f"queue {queue} goes on" if app.resume(queue) else f"queue {queue} was not paused"

    def retry(job_id: str) -> str:
        done = ops.retry(app, [job_id])
        why_not = "it has not ended, is gone, or its arguments were not kept"
        return f"job {short(job_id)} starts over" if done else f"job {short(job_id)} was not retried: {why_not}"

    def cancel(job_id: str) -> str:
        return f"job {short(job_id)} {_CANCELLED[ops.cancel(app, [job_id])[job_id]]}"

    return Actions(
        pause=pause,
        resume=resume,
        retry=retry,
        cancel=cancel,
        job=lambda job_id: job_lines(app, job_id),
        logs=lambda job_id: log_lines(app, job_id),
    )
