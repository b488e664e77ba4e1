"""Whether a queue works, for probes: a few cheap questions, a yes or no, and the facts it rests on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dray.backends.store.doctor import Seen
from dray.backends.store.liveness import Life
from dray.errors import DrayError
from dray.instants import SECOND
from dray.model.circumstances import Closed
from dray.model.values import shown
from dray.ops.doctor.check import Subject, Verdict, count_of, failed_by, span
from dray.ops.doctor.database import schema
from dray.wording import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What was found. A number is None where it was not asked for, or the database cannot be read."""

    database: str
    problems: tuple[str, ...]
    version: int | None = None
    workers: int | None = None  # that live and can work
    free_duties: tuple[str, ...] = ()
    oldest_ready: float | None = None  # seconds; of the queues that were asked for
    failed: int | None = None

    @property
    def is_healthy(self) -> bool:
        return not self.problems


def health(
    subject: Subject,
    *,
    worker: str | None,  # the name or id of one that must be alive
    min_workers: int,
    queues: Collection[str],  # that `max_age` is about; none: all
    max_age: float | None,  # seconds that a ready job may wait
    max_failed: int | None,  # jobs that may fail within `window`
    window: float,
) -> Health:
    """Asks the database; never raises for what is wrong with it."""
    place = subject.settings.place
    try:
        fits = schema(subject)
        if fits.verdict is Verdict.FAILED:
            return Health(database=place, problems=(fits.text,))
        known = subject.eyes.known()
        version = int(known["version"])
        closed = Closed.of(known)
        if closed is not None:
            return Health(database=place, problems=(closed.text,), version=version)
        live = subject.live
        able = sum(_trouble(each) is None for each in live)
        duties = tuple(subject.free_duties())
        oldest = None if max_age is None else _oldest(subject, queues)
        window_us = int(window * SECOND)
        went_wrong = None if max_failed is None else subject.eyes.ended(subject.eyes.now - window_us)[1]
    except DrayError as error:
        return Health(database=place, problems=(failed_by(error).text,))
    problems = [] if able >= min_workers else [_too_few(live, able, min_workers)]
    if worker is not None:
        there = [each for each in live if worker == each.worker.name or each.worker.id.endswith(worker.lower())]
        troubles = [_trouble(each) for each in there] or ["is not alive"]
        problems += [] if None in troubles else [f"worker {shown(worker)} {troubles[0]}"]
    if duties:
        problems.append(f"no worker has the duties {listed(duties)}")
    if oldest is not None and max_age is not None and oldest > max_age:
        where = f" in queue {listed(sorted(queues))}" if queues else ""
        problems.append(f"the oldest ready job{where} has waited for {span(int(oldest * SECOND))}")
    if went_wrong is not None and max_failed is not None and went_wrong > max_failed:
        problems.append(f"{count_of(went_wrong, 'job')} failed in the last {span(window_us)}")
    return Health(
        database=place,
        problems=tuple(problems),
        version=version,
        workers=able,
        free_duties=duties,
        oldest_ready=oldest,
        failed=went_wrong,
    )


def _trouble(seen: Seen) -> str | None:
    """Why a worker that is not gone does not work; None: it does."""
    if seen.life is not Life.ALIVE:
        return "has missed two beats and more"
    return seen.worker.trouble


def _too_few(live: Sequence[Seen], able: int, wanted: int) -> str:
    troubles = [f"{each.worker.name} {trouble}" for each in live if (trouble := _trouble(each)) is not None]
    verb = "can work" if troubles else "alive"
    there = f"only {count_of(able, 'worker')} {verb}" if able else f"no worker {verb if troubles else 'is alive'}"
    number = "" if wanted == 1 else f", not {wanted}"
    return there + number + (f": {listed(troubles)}" if troubles else "")


def _oldest(subject: Subject, queues: Collection[str]) -> float:
    """How long the first ready job has waited; 0: there is none."""
    ready = [*subject.eyes.ready, *subject.eyes.due()]
    since = [each.since for each in ready if not queues or each.queue in queues]
    return max(0, subject.eyes.now - min(since)) / SECOND if since else 0.0
