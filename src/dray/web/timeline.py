"""What a job was, and for how long: from when it was enqueued to its end, or to now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dray.model.job import FINAL
from dray.wording import counted, span

_DRAWN = 30  # attempts, the newest
_NOTABLE = 0.001  # seconds; a shorter wait is not drawn
_KINDS = {"completed": "completed", "running": "running", "cancelled": "cancelled"}
_WORDS = {"error": "failed", "retry": "failed", "timeout": "timed out", "crashed": "its worker died"}


class Segment(NamedTuple):
    kind: str  # queued, wait, running, completed, failed, cancelled
    begin: float  # seconds from the start
    end: float
    words: str  # "failed"; of a wait, what for
    number: int | None = None  # of the attempt

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Tick(NamedTuple):
    """A log line."""

    at: float
    level: str


class Timeline(NamedTuple):
    start: datetime
    end: datetime
    is_over: bool  # False: it ends now
    segments: list[Segment]
    ticks: list[Tick]

    @property
    def seconds(self) -> float:
        return max((self.end - self.start).total_seconds(), 0.001)

    @property
    def words(self) -> str:
        """The same in sentences, for readers who do not see the drawing."""
        return " ".join(_sentence(each) for each in self.segments)


def timeline(
    job: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], now: datetime
) -> Timeline:
    """Of a job, its attempts and its log lines in their JSON shapes.

    Clocks differ: an attempt that began before the one before it had ended is drawn from that end on.
    """
    begun = [each for each in attempts if each["started_at"] is not None][-_DRAWN:]
    start = job["created_at"] if len(begun) == len(attempts) or not begun else begun[0]["started_at"]
    is_over = job["state"] in FINAL and job["finished_at"] is not None
    end = max(job["finished_at"] if is_over else now, start)
    segments: list[Segment] = []
    last = 0.0

    def after(when: datetime) -> float:
        return min(max(last, (when - start).total_seconds()), (end - start).total_seconds())

    for each in begun:
        begin = after(each["started_at"])
        if begin - last >= _NOTABLE:
            segments.append(_gap(job, last, begin, each["number"], is_first=not segments))
        last = begin
        last = after(each["finished_at"] or end)
        outcome: str = each["outcome"]
        kind, said = _KINDS.get(outcome, "failed"), _WORDS.get(outcome, outcome)
        segments.append(Segment(kind, begin, last, said, each["number"]))
    if after(end) - last >= _NOTABLE and (not segments or not is_over):
        segments.append(_rest(job, last, after(end), is_first=not segments))
    ticks = [Tick((line["at"] - start).total_seconds(), line["level"].lower()) for line in lines]
    reach = max((end - start).total_seconds(), 0.001)
    return Timeline(
        start, start + timedelta(seconds=reach), is_over, segments, [t for t in ticks if 0 <= t.at <= reach]
    )


def _gap(job: Mapping[str, Any], begin: float, end: float, number: int, *, is_first: bool) -> Segment:
    if is_first and not job["workflow"]:
        return Segment("queued", begin, end, "queued")
    return Segment("wait", begin, end, f"waits for attempt {number}")


def _rest(job: Mapping[str, Any], begin: float, end: float, *, is_first: bool) -> Segment:
    """What follows the last attempt, of a job that has not ended; or all of one that never started."""
    if job["state"] == "queued" or (is_first and job["state"] in FINAL):
        return Segment("queued", begin, end, "queued" if job["state"] == "queued" else "never started")
    words = {"waiting": "waits for other jobs", "scheduled": "waits for its time"}
    state: str = job["state"]
    return Segment("wait", begin, end, words.get(state, state))


def _sentence(each: Segment) -> str:
    if each.number is None:
        return f"{each.words[0].upper()}{each.words[1:]}, {span(each.seconds)}."
    if each.kind == "running":
        return f"Attempt {each.number} has been running for {span(each.seconds)}."
    return f"Attempt {each.number}: {each.words} after {span(each.seconds)}."


def left_out(attempts: int) -> str:
    """What to say of attempts that are not drawn."""
    return "" if attempts <= _DRAWN else f"{counted(attempts - _DRAWN, 'earlier attempt')} not drawn"
