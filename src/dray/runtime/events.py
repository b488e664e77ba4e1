"""Tells an App's hooks what a worker has written, on a thread of their own.

The engine, the duties and bodies only put down what happened: a slow hook delays nothing but other hooks. When too
much waits, events are dropped and counted, and the log says so now and then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dray.app_interface import AppInterface
from dray.handle.job import AttemptError, Job
from dray.log import log
from dray.model.job import State
from dray.model.new_job import NewJob
from dray.model.settlement import Settled, Settlement
from dray.model.worker import Rescued
from dray.runtime.execution import Execution
from dray.runtime.service import Service
from dray.wording import counted, short_id

_MOST = 10_000  # events that wait for hooks
_WITH_ERRORS = 1_000  # of these, those that bring their tracebacks, up to 64 KiB each; those of others are read later
_BETWEEN_COMPLAINTS = 10.0  # seconds
_IDLE = 3600.0
_LEAST_PATIENCE = 1.0  # seconds that hooks have at the end, however long bodies took

_WITH_ERROR = {"failed", "retried"}
_FINAL = {State.COMPLETED: "completed", State.FAILED: "failed", State.CANCELLED: "cancelled"}


class _Happened(NamedTuple):
    event: str
    job_id: str
    error: AttemptError | None = None
    claim: int | None = None  # of the attempt, if its record is still to be read
    is_certain: bool = True  # False: the record tells whether it was this, or the body had completed the job itself


@dataclass(eq=False)
class Events(Service):
    """`started` and the methods like it are for any thread."""

    name = "dray-hooks"
    _app: AppInterface

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wanted = self._app.hooks.worker_events
        self._waiting: deque[_Happened] = deque()
        self._dropped = 0
        self._complained_at: float | None = None
        self._deadline: float | None = None  # for what waits when the worker ends
        self._is_given_up = False

    def started(self, execution: Execution) -> None:
        self._put(_Happened("started", execution.claim.id))

    def settled(self, batch: Iterable[Settlement], settled: Settled) -> None:
        """Outcomes that a transaction has written. Lost claims and jobs that were given back have none."""
        skipped = {*settled.locked, *settled.stale}
        already, refused, cancelled = set(settled.already), set(settled.refused), set(settled.cancelled)
        for each in batch:
            if each.id in skipped:
                continue
            if each.id in refused:
                self._put(_Happened("failed", each.id, claim=each.claim))
            elif each.id in cancelled:
                self._put(_Happened("cancelled", each.id))
            elif each.outcome is not None:
                event = _FINAL.get(State(each.state), "retried")
                if each.id in already and event != "completed":
                    self._put(_Happened(event, each.id, claim=each.claim, is_certain=False))
                elif event not in _WITH_ERROR:
                    self._put(_Happened(event, each.id))
                elif len(self._waiting) >= _WITH_ERRORS:
                    self._put(_Happened(event, each.id, claim=each.claim))
                else:
                    error = AttemptError(each.error_type, each.error_message, each.traceback, each.error_class)
                    self._put(_Happened(event, each.id, error))

    def grown(self, settlement: Settlement, new: Sequence[NewJob], settled: Settled) -> None:
        """A job has ended together with the steps that it added, or its claim was lost and with it the steps."""
        self.settled([settlement], settled)
        if settlement.id not in {*settled.stale, *settled.refused}:
            self.enqueued([job.id for job in new])

    def completed(self, execution: Execution) -> None:
        """The body has completed its job in a transaction of its own, maybe with new steps."""
        self._put(_Happened("completed", execution.claim.id))
        self.enqueued([job.id for job in execution.grown])

    def enqueued(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self._put(_Happened("enqueued", job_id))

    def cancelled(self, ids: Iterable[str]) -> None:
        """Jobs that were not started in time, or whose parent did not complete."""
        for job_id in ids:
            self._put(_Happened("cancelled", job_id))

    def rescued(self, jobs: Sequence[Rescued]) -> None:
        """Jobs of workers that are gone: crashed, or ended as their workers had left it."""
        for job in jobs:
            event = _FINAL.get(State(job.state), "retried")
            self._put(_Happened(event, job.id, claim=job.claim if event in _WITH_ERROR else None))

    def _put(self, happened: _Happened) -> None:
        if happened.is_certain and happened.event not in self._wanted:
            return
        if len(self._waiting) >= _MOST:
            self._dropped += 1
        else:
            self._waiting.append(happened)
        self.wake()

    # On its own thread, and at the end

    def tick(self) -> float:
        self._work_off()
        return _IDLE

    def _run(self) -> None:
        super()._run()
        self._work_off()  # what came before the end, and was not heard

    def end_by(self, deadline: float) -> None:
        """Until when hooks may work off what waits, once the worker ends: a reading of `time.monotonic`."""
        self._deadline = deadline

    def end(self, timeout: float | None = None) -> None:
        """Works off what waits, for as long as the worker's grace allows."""
        left = 0.0 if self._deadline is None else self._deadline - time.monotonic()
        super().end(max(left, _LEAST_PATIENCE) if timeout is None else timeout)
        if self._thread.is_alive():
            self._is_given_up = True
            lost = counted(len(self._waiting) + 1, "event was", "events were")
            log.warning("hooks took too long: %s not reported before the worker ended", lost)

    def _work_off(self) -> None:
        while self._waiting and not self._is_given_up:
            self._tell(self._waiting.popleft())
            if self._dropped:
                self._complain()

    def _complain(self) -> None:
        now = time.monotonic()
        if self._complained_at is not None and now - self._complained_at < _BETWEEN_COMPLAINTS:
            return
        dropped, self._dropped, self._complained_at = self._dropped, 0, now
        lost = counted(dropped, "event was", "events were")
        log.warning("hooks are too slow: %s dropped, because %s wait already", lost, f"{_MOST:,}")

    def _tell(self, happened: _Happened) -> None:
        known: _Happened | None = happened
        if happened.claim is not None:
            try:
                known = self._looked_up(happened)
            except Exception as error:  # noqa: BLE001 - the database is away: of an event it costs the error at most
                log.warning("what to tell hooks of job %s cannot be read: %s", short_id(happened.job_id), error)
        if known is not None:
            self._app.hooks.report(known.event, Job(self._app, known.job_id), known.error)

    def _looked_up(self, happened: _Happened) -> _Happened | None:
        """As the attempt's record tells; None: the attempt was given back, and nothing happened."""
        kept = self._app.backend.history.attempts(happened.job_id)
        record = next((each for each in kept if each.claim == happened.claim), None)
        if record is None:
            if not happened.is_certain:
                return _Happened("completed", happened.job_id)
            return None if happened.event == "retried" else happened
        said = (record.error_type, record.error_message, record.traceback, record.error_class)
        return happened._replace(error=AttemptError(*said))
