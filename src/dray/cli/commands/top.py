"""``dray top``: a full-screen view of what goes on, with keys to act."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from dray import ops
from dray.cli.exits import Code
from dray.cli.output import short
from dray.cli.shared import app_on_tables, option, shared, wants_json
from dray.errors import UnknownJob
from dray.model.job import CancelResult

if TYPE_CHECKING:
    from dray.app import App
    from dray.cli.live.feed import Feed
    from dray.cli.live.paint import Brush
    from dray.cli.live.screen import Screen
    from dray.cli.live.view import Actions, Sight, Text, View

_SECOND = 1.0


@click.command()
@option("--read-only", is_flag=True, help="Only look: no key changes anything.")
@shared
def top(*, read_only: bool) -> int:
    """A live view: queues, running jobs with their progress, failures, workers and rates. `?` shows the keys."""
    from dray.cli.live.ink import has_colours, is_ascii_only, is_dumb  # noqa: PLC0415 - `--help` needs none

    if wants_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top is for a terminal; programs use `dray stats --json` or `dray tail --jsonl`")
    if is_dumb():
        raise click.UsageError("top needs a terminal whose cursor can be moved; try `dray stats --watch`")

    from dray.cli.live.paint import Brush  # noqa: PLC0415
    from dray.cli.live.view import View  # noqa: PLC0415

    app = app_on_tables()
    brush = Brush(colours=has_colours(), ascii_only=is_ascii_only())
    _run(app, View(app.settings.place, _actions(app), read_only, brush.ascii_only), brush)
    return Code.DONE


def _run(app: App, view: View, brush: Brush) -> None:
    from dray.cli.live.feed import Feed  # noqa: PLC0415
    from dray.cli.live.screen import Screen  # noqa: PLC0415
    from dray.cli.live.view import Sight  # noqa: PLC0415
    from dray.ops.top import Top  # noqa: PLC0415

    source = Top(app.backend)
    view.sight = Sight(source.look())  # what is wrong with the database is said before the screen is taken

    def look() -> Sight:
        reading = view.reading
        return Sight(source.look(), reading, None if reading is None else _text(reading))

    with Screen() as screen, Feed(app, look, screen.bell.ring) as feed:
        _loop(view, brush, screen, feed)


def _text(reading: Text) -> list[str]:
    try:
        return reading.source()
    except UnknownJob as error:
        return [str(error)]


def _loop(view: View, brush: Brush, screen: Screen, feed: Feed[Sight]) -> None:
    """Draws what there is and hands keys over, until somebody has seen enough."""
    from dray.cli.live import layout  # noqa: PLC0415

    shown, seen_at = None, time.monotonic()
    while not (view.is_over or screen.is_over):
        feed.check()
        latest = feed.latest
        if latest is not None and latest is not shown:
            view.sight, shown, seen_at = latest, latest, time.monotonic()
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


def _hand_over(view: View, screen: Screen, feed: Feed[Sight]) -> None:
    """Sees to what keys have asked for."""
    for work in view.asked:
        feed.ask(work)
    view.asked.clear()
    if view.wants_text:
        feed.again()
    if view.wants_redraw:
        screen.redraw()
    view.wants_text = view.wants_redraw = False


def _silent(since: float) -> str:
    return f"no answer for {int(time.monotonic() - since)}s"


def _actions(app: App) -> Actions:
    from dray.cli.live import details  # noqa: PLC0415
    from dray.cli.live.view import Actions  # noqa: PLC0415

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
        job=lambda job_id: details.job(app, job_id),
        logs=lambda job_id: details.logs(app, job_id),
    )


_CANCELLED = {
    CancelResult.CANCELLED: "is cancelled",
    CancelResult.REQUESTED: "is asked to stop",
    CancelResult.FINAL: "had ended already",
    CancelResult.UNKNOWN: "is gone",
}
