"""Waiting for jobs to end: one thread in a process, for any number of waits.

The thread asks for all awaited jobs in one statement when the database may have changed (a `Watch` tells), when a new
wait begins, and at least once a second. After a look that found nothing it rests, each time twice as long, up to
20 ms: fifty processes that wait would otherwise slow down the one that works. The thread ends a few seconds after the
last wait.

Of a wait that takes longer than 2 seconds, the thread looks whether its jobs can run at all, and warns if one cannot:
no worker is alive, none knows the task, the queue is paused … It looks again after 4 seconds, 8, up to 30, until it
has warned once: a worker may die later.

A wait raises if its first look fails. After that it survives an unavailable database, until its own timeout.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dray import forks
from dray.errors import ForkedConnection, SchemaTooNew, StorageError, UnknownJob
from dray.interrupts import Signal, start_thread, with_cleanup
from dray.log import log
from dray.model.job import Job
from dray.sanitize import escape_control
from dray.wording import short_id, with_short_ids

if TYPE_CHECKING:
    import asyncio

    from dray.backends.base import Backend
    from dray.backends.watch import Watch
    from dray.model.causes import Standstill


LINGER: Final = 3.0  # seconds that the thread and its watch stay for the next wait
PATIENCE: Final = 2.0  # seconds of waiting after which a job that cannot run is worth a warning
LONGEST_PATIENCE: Final = 30.0  # seconds between two looks for such jobs

_LOOK: Final = 1.0
_UNPUSHED_LOOK: Final = 0.1
_FIRST_REST: Final = 0.000_25  # a wait for a short job has just begun: it may end any moment
_REST: Final = 0.002
_LONGEST_REST: Final = 0.02
_SHORTEST_BACKOFF: Final = 0.1
_LONGEST_BACKOFF: Final = 5.0
_BATCH: Final = 1_000  # jobs in one read
_LOOKS_MOST: Final = 10  # jobs that are looked at for a warning
_LOOKS_WITHIN: Final = 60.0  # these seconds, of all waits together
_LOOKED_AT: Final = 2  # jobs of one wait at a time
_SLICE: Final = 0.25  # seconds between two chances to stop a body that waits


class Waiter:
    """Tells any number of threads and coroutines when their jobs have ended."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.after_fork_in_child()
        forks.watch_child(self)

    def after_fork_in_child(self) -> None:
        """Starts with nothing: the thread and the waits stayed with the parent."""
        self._lock = threading.Lock()
        self._waits: dict[str, set[_Wait]] = {}  # by job
        self._looker: _Looker | None = None
        self._warned: dict[str, float] = {}  # job -> when it was warned of, in the last minute
        self._looks: deque[float] = deque()  # when jobs were looked at for a warning, in the last minute
        self._warns_at = math.inf  # when a wait has taken so long that it is worth a look

    def wait(
        self,
        ids: Iterable[str],
        timeout: float | None = None,
        *,
        enough: int | None = None,
        patience: Patience | None = None,
    ) -> dict[str, Job]:
        """Waits for jobs to end, all of them or `enough`; returns those that have ended by `timeout`. `patience`: of
        a wait in several parts.

        Raises `UnknownJob` at once.
        """
        over = Signal()
        wait = _Wait(ids, over.set, enough, patience)

        def until_over() -> bool:
            self._register(wait)
            return _wait(over, timeout)

        has_ended = with_cleanup(until_over, lambda: self._forget(wait))
        # A first look at many jobs goes in batches: those that it has found count.
        return wait.result() if has_ended or wait.is_under_way else wait.result() | self._look_at(wait.left)

    async def wait_async(
        self,
        ids: Iterable[str],
        timeout: float | None = None,
        *,
        enough: int | None = None,
        patience: Patience | None = None,
    ) -> dict[str, Job]:
        """As `wait`, from a coroutine."""
        import asyncio  # noqa: PLC0415 - programs without coroutines do not load it

        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        wait = _Wait(ids, lambda: _tell(loop, over), enough, patience)
        try:
            self._register(wait)
            ended, _ = await asyncio.wait([over], timeout=timeout)
        finally:
            self._forget(wait)
        if ended or wait.is_under_way:
            return wait.result()
        return wait.result() | await asyncio.to_thread(self._look_at, wait.left)

    def standstill(self, job_id: str) -> Standstill | None:
        """Why a job does not run, in one read; None: it runs, has ended, or is gone."""
        return self._backend.why.standstill(job_id)

    def stuck(self, ids: Sequence[str], patience: Patience) -> tuple[str, Standstill] | None:
        """A job among these that only a person can move, and why; looks at one or two of them."""
        for job_id in self._to_look_at(ids, patience):
            found = self.standstill(job_id)
            if found is not None and found.needs_help:
                return job_id, found
        return None

    def _to_look_at(self, ids: Sequence[str], patience: Patience) -> list[str]:
        if len(ids) == 1:
            return list(ids)
        kinds = [job_id for batch in _batches(list(ids)) for job_id in self._backend.why.of_each_kind(batch)]
        return patience.next_of(kinds)

    def poke(self) -> None:
        """Looks again, because jobs have ended in this process. For any thread; almost free if there is no wait."""
        looker = self._looker
        if looker is not None and looker.watch is not None and self._waits:
            looker.watch.poke()

    def close(self) -> None:
        """Ends the thread; current waits raise. The next wait starts another thread."""
        with self._lock:
            looker, self._looker = self._looker, None
            self._fail(
                self._all_waits(),
                StorageError("the app was closed while this waited for a job to end; close it later"),
            )
        if looker is not None:
            looker.call()
            looker.thread.join()

    def _register(self, wait: _Wait) -> None:
        if not wait.left:
            wait.tell()
            return
        with self._lock:
            for job_id in wait.left:
                self._waits.setdefault(job_id, set()).add(wait)
            if wait.patience.may_warn:
                self._warns_at = min(self._warns_at, wait.patience.looks_at)
            looker = self._looker
            if looker is None:
                looker = _Looker(self._run)
                start_thread(looker.thread)  # first: a Ctrl-C here leaves no thread that cannot be joined
                self._looker = looker
        looker.call()

    def _forget(self, wait: _Wait) -> None:
        with self._lock:
            self._drop(wait)

    def _drop(self, wait: _Wait) -> None:
        for job_id in wait.left:
            others = self._waits.get(job_id, set())
            others.discard(wait)
            if not others:
                self._waits.pop(job_id, None)

    def _fail(self, waits: Iterable[_Wait], error: Exception) -> None:
        for wait in waits:
            self._drop(wait)
            wait.fail(error)

    def _all_waits(self) -> set[_Wait]:
        return {wait for waits in self._waits.values() for wait in waits}

    def _run(self, me: _Looker) -> None:
        while self._is_needed(me):
            self._tick(me)
        me.let_watch_go()

    def _is_needed(self, me: _Looker) -> bool:
        """Whether there is a wait, now or within a while. After False the next wait starts another thread."""
        leaves_at = time.monotonic() + LINGER
        while True:
            with self._lock:
                if self._looker is not me:
                    return False
                if self._waits:
                    return True
                left = leaves_at - time.monotonic()
                if left <= 0:
                    self._looker = None
                    return False
                me.called.clear()  # within the lock: a wait that begins from here on calls again
            me.called.wait(left)

    def _tick(self, me: _Looker) -> None:
        """Looks at all awaited jobs once, and rests until the next look."""
        try:
            self._step(me)
        except StorageError as error:
            me.let_watch_go()
            self._endure(error, me)
            me.called.wait(me.backoff())
        except Exception as error:  # noqa: BLE001 - a tick: every wait has to raise it
            with self._lock:
                self._fail(self._all_waits(), error)

    def _step(self, me: _Looker) -> None:
        is_called = me.called.is_set()
        me.called.clear()
        began = time.monotonic()
        has_told = self._look()
        me.looked(time.monotonic() - began, is_called=is_called, has_told=has_told)
        warns_in = self._warn()
        if not self._waits or me.called.wait(me.rest):
            return
        if me.watch is None:
            me.watch = self._backend.watch(hears_work=False)
            return  # it tells of changes from now on: look once more
        began = time.monotonic()
        me.watch.wait(min(_LOOK if me.watch.is_pushed else _UNPUSHED_LOOK, warns_in))
        if time.monotonic() - began > _LONGEST_REST:
            me.relax()

    def _look_at(self, ids: Iterable[str]) -> dict[str, Job]:
        """For waits shorter than one poll: every wait gets at least one look."""
        found: dict[str, Job] = {}
        for batch in _batches(list(ids)):
            jobs, missing = self._backend.jobs.ended(batch)
            for job_id in missing:
                raise unknown_job(job_id)
            found |= {job.id: job for job in jobs}
        return found

    def _look(self) -> bool:
        """Looks up all awaited jobs and ends their waits; returns whether there was anything to tell.

        A wait that begins during the read comes with the next one. What this read found may be of before: after a
        retry, `result()` returned the old outcome.
        """
        with self._lock:
            ids, looking = list(self._waits), self._all_waits()
        has_told = False
        for batch in _batches(ids):
            jobs, missing = self._backend.jobs.ended(batch)
            with self._lock:
                for job in jobs:
                    waits = self._waits.pop(job.id, set())
                    if later := waits - looking:
                        self._waits[job.id] = later
                    for wait in waits & looking:
                        wait.take(job)
                for job_id in missing:
                    self._fail(self._waits.get(job_id, set()) & looking, unknown_job(job_id))
            has_told |= bool(jobs or missing)
        for wait in looking:
            wait.is_under_way = True
        return has_told

    def _warn(self) -> float:
        """Warns of jobs that are waited for and cannot run. Returns the seconds until the next look for such."""
        now = time.monotonic()
        if now < self._warns_at:
            return self._warns_at - now
        self._warned = {job_id: at for job_id, at in self._warned.items() if now - at < _LOOKS_WITHIN}
        while self._looks and now - self._looks[0] >= _LOOKS_WITHIN:
            self._looks.popleft()
        with self._lock:
            due = [wait for wait in self._all_waits() if wait.patience.is_due(now)]
        for wait in sorted(due, key=lambda wait: wait.patience.looks_at):  # who has waited longest for a look
            if len(self._looks) >= _LOOKS_MOST:
                break
            self._look_for_help(wait, now)
        with self._lock:
            times = [wait.patience.looks_at for wait in self._all_waits() if wait.patience.may_warn]
            self._warns_at = min(times, default=math.inf)
            if len(self._looks) >= _LOOKS_MOST:
                self._warns_at = max(self._warns_at, self._looks[0] + _LOOKS_WITHIN)
        return max(0.0, self._warns_at - now)

    def _look_for_help(self, wait: _Wait, now: float) -> None:
        with self._lock:
            ids, patience = list(wait.left), wait.patience
        patience.looked(now)
        for job_id in self._to_look_at(ids, patience) if ids else ():
            found = None
            if job_id not in self._warned:
                self._looks.append(now)
                found = self.standstill(job_id)
            if found is not None and found.needs_help:
                why = escape_control(with_short_ids(found.text))
                log.warning("still waiting for job %s, which does not run. %s", short_id(job_id), why)
                self._warned[job_id] = now
            if job_id in self._warned:
                patience.may_warn = False
                return

    def _endure(self, error: StorageError, me: _Looker) -> None:
        """Handles a database that cannot be read: waits under way go on, waits whose first look this was raise."""
        is_final = isinstance(error, ForkedConnection | SchemaTooNew)
        with self._lock:
            waits = self._all_waits()
            self._fail([wait for wait in waits if is_final or not wait.is_under_way], error)
            has_others = bool(self._waits)
        if has_others and me.failures == 0:
            log.warning("cannot read the jobs that are waited for: %s; trying again", error)


def _wait(over: Signal, timeout: float | None) -> bool:
    """Waits in slices: a body that waits can be stopped only between two of them."""
    ends = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE if ends is None else min(_SLICE, ends - time.monotonic())
        if over.wait(left):
            return True
        if left < _SLICE:
            return False


class _Looker:
    """One thread that looks, and how long it rests after a look, and after failures."""

    def __init__(self, run: Callable[[_Looker], None]) -> None:
        self.thread = threading.Thread(target=run, args=(self,), name="dray-wait", daemon=True)
        self.called = Signal()
        self.watch: Watch | None = None
        self.rest = 0.0
        self.failures = 0
        self._next_rest = _FIRST_REST

    def call(self) -> None:
        """Ends the thread's rest: a new wait has begun, or the thread is to end."""
        self.called.set()
        watch = self.watch
        if watch is not None:
            watch.poke()

    def let_watch_go(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.close()

    def looked(self, took: float, *, is_called: bool, has_told: bool) -> None:
        """Sets the rest: none after a look that found something, but at least as long as a slow look took."""
        self.failures = 0
        if is_called:
            self._next_rest = _FIRST_REST
        self.rest = 0.0 if is_called or has_told else self._next_rest
        self._next_rest = min(self._next_rest * 2, _LONGEST_REST) if self.rest else self._next_rest
        self.rest = max(self.rest, min(took, _LONGEST_REST))

    def relax(self) -> None:
        """Nothing has happened for a while."""
        self._next_rest = min(self._next_rest, _REST)

    def backoff(self) -> float:
        self.failures += 1
        return min(_SHORTEST_BACKOFF * 2 ** min(self.failures - 1, 10), _LONGEST_BACKOFF)


class Patience:
    """When to look whether the jobs of a wait can run, and which of them comes next."""

    def __init__(self) -> None:
        self.may_warn = True  # it has not been warned yet
        self.looks_at = time.monotonic() + PATIENCE
        self._pause = PATIENCE
        self._seen: set[str] = set()

    def is_due(self, now: float) -> bool:
        return self.may_warn and self.looks_at <= now

    def looked(self, now: float) -> None:
        self._pause = min(self._pause * 2, LONGEST_PATIENCE)
        self.looks_at = now + self._pause

    def next_of(self, ids: Sequence[str]) -> list[str]:
        """A few of these jobs: each comes once before one comes again."""
        unseen = [job_id for job_id in ids if job_id not in self._seen]
        if not unseen:
            unseen, self._seen = list(ids), set()
        self._seen.update(unseen[:_LOOKED_AT])
        return unseen[:_LOOKED_AT]


class _Wait:
    def __init__(
        self, ids: Iterable[str], tell: Callable[[], None], enough: int | None, patience: Patience | None
    ) -> None:
        self.left = dict.fromkeys(ids)
        self.tell = tell
        self.patience = patience or Patience()
        self.is_under_way = False
        self._enough = len(self.left) if enough is None else min(enough, len(self.left))
        self._ended: dict[str, Job] = {}
        self._error: Exception | None = None

    def take(self, job: Job) -> None:
        self._ended[job.id] = job
        self.left.pop(job.id, None)
        if len(self._ended) >= self._enough:
            self.tell()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.tell()

    def result(self) -> dict[str, Job]:
        if self._error is not None:
            raise self._error
        return self._ended


def _batches(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _BATCH):
        yield ids[start : start + _BATCH]


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))
    except RuntimeError:  # the loop is closed, and its waits are gone
        log.debug("a loop was closed while a coroutine of it waited for a job")


def unknown_job(job_id: str) -> UnknownJob:
    """The error for an id that no job has."""
    return UnknownJob(
        f"no job has the id {job_id}: it was never committed, was rolled back, or was deleted or pruned; "
        "commit the transaction that enqueued it, or keep ended jobs longer"
    )
