"""What happens in the demo, in order."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from rich.text import Text

from dray.app_interface import core_of
from dray.cli.cells import short
from dray.cli.demo import tasks
from dray.cli.demo.accounts import Accounts, Evidence, compare, put_accounts
from dray.cli.demo.tasks import LEDGER
from dray.cli.exits import Code, Failure
from dray.cli.output import is_terminal, put
from dray.cli.processes import Workers
from dray.cli.terminal import progress_bar
from dray.handle.job import Job
from dray.handle.run import Run
from dray.model.job import FINAL, State
from dray.task.task import Task
from dray.wording import counted, span

_LIVE: Final = ("queued", "scheduled", "running")
_PACE = 0.1  # seconds between two looks
_KILL_AT = 0.4  # share of the jobs that are done when a worker is killed
_LATER = 5.0  # seconds, of the delayed job
_PICTURES = 5  # steps of the workflow that the album waits for
_GROWN = 1  # steps that the workflow adds itself
_TICK = 0.5  # seconds between two slots of the schedule
_CLOCK = "clock"  # the queue of its jobs, which the schedule enqueues
_BATCH = 100
_STEP = 10  # percent between two plain lines
_MIX: tuple[tuple[Task[..., Any], int, Callable[[int], tuple[Any, ...]]], ...] = (  # percent, arguments of the Nth
    (tasks.resize, 58, lambda number: (number,)),
    (tasks.fetch, 20, lambda number: (number,)),
    (tasks.mail, 10, lambda number: (f"reader{number}@example.com",)),
    (tasks.charge, 8, lambda number: (number,)),
    (tasks.render, 4, lambda _: (20_000,)),
)


def perform(folder: Path, scale: int, concurrency: int, seconds: float) -> bool:
    url = f"sqlite:///{folder / 'demo.db'}"
    core_of(tasks.app).change_settings(url=url)
    ledger = {LEDGER: str(folder / "ledger")}
    options = ["--concurrency", str(concurrency)]
    with tasks.app, Workers("demo", "dray.cli.demo.tasks:app", url, folder, options, **ledger) as workers:
        with Stage() as shown:
            play = Play(folder, shown, workers, scale, seconds)
            found = play.perform()
        put_accounts(found, play.remarks)
    return not found.problems


class Stage:
    """Shows events as lines, and how far the work is: by a bar on a terminal, elsewhere by a line now and then."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = 0
        self._progress = progress_bar("{task.completed:,.0f}/{task.total:,.0f}", "{task.description}", stderr=False)
        self._bar = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        if is_terminal():
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if is_terminal():  # elsewhere it would print an empty line
            self._progress.stop()

    def tell(self, text: str) -> None:
        timed = f"{time.monotonic() - self._began:5.1f}s  {text}"
        if is_terminal():
            self._progress.console.print(Text(timed))
        else:
            put(timed)

    def count(self, done: int, total: int, words: str) -> None:
        if is_terminal():
            self._progress.update(self._bar, completed=done, total=total, description=words, visible=True)
            return
        step = 100 * done // total // _STEP
        if step > self._told:
            self._told = step
            self.tell(f"{done:,} of {total:,} done ({words})")


@dataclass(slots=True)
class Play:
    folder: Path
    stage: Stage
    workers: Workers
    scale: int  # number of jobs
    seconds: float  # limit for everything
    began: float = field(default_factory=time.monotonic)
    enqueued: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    killed: set[str] = field(default_factory=set[str])
    remarks: list[str] = field(default_factory=list[str])

    def perform(self) -> Accounts:
        self._open()
        tasks.app.schedule("tick", tasks.tick, every=_TICK, misfire="all", misfire_limit=1000)
        delayed = tasks.greet.using(delay=_LATER, priority=10).enqueue("later")
        unique = tasks.greet.using(unique="greet:once", delay=1, priority=10).enqueue("once")
        second = tasks.greet.using(unique="greet:once").enqueue("once more")
        napping = tasks.nap.using(priority=10).enqueue(600)
        report = tasks.report.using(priority=10).enqueue(8)
        album = self._enqueue_album()
        self.enqueued["greet"] = sorted({delayed.id, unique.id, second.id})
        self.enqueued |= {"nap": [napping.id], "report": [report.id]}
        self._enqueue_many()
        self._cancel(napping)
        self._work_off()
        self.enqueued["picture"] += [album.job("cover").id]
        problems = [*self._stop_clock(), *self._remark_on(delayed, unique, second, album, report)]
        codes = self.workers.stop()
        found = self._accounts(napping.id)
        found.problems += problems
        if any(codes):
            found.problems.append(f"workers ended with {codes} when they were asked to stop")
        return found

    def _open(self) -> None:
        core_of(tasks.app).backend.migrate()
        with closing(sqlite3.connect(self.folder / "demo.db")) as connection:
            connection.execute(tasks.CHARGES)
        pids = [self.workers.start(), self.workers.start()]
        self._until(lambda: len(self._live_workers()) == len(pids), "the workers have not started")
        self.stage.tell(f"two workers have started: processes {pids[0]} and {pids[1]}")

    def _enqueue_many(self) -> None:
        began = time.monotonic()
        made: dict[str, list[str]] = {task.name: [] for task, _, _ in _MIX}
        for start in range(0, self.scale, _BATCH):  # all tasks mixed, so that the kill hits each of them
            for task, percent, call in _MIX:
                calls = [call(start + number) for number in range(_BATCH * percent // 100)]
                made[task.name] += [job.id for job in task.enqueue_many(calls)]
        self.enqueued |= made
        sizes = {name: len(ids) for name, ids in made.items()}
        took = span(time.monotonic() - began)
        listed = ", ".join(f"{count:,} {name}" for name, count in sizes.items())
        self.stage.tell(f"{sum(sizes.values()):,} jobs enqueued in {took}: {listed}")

    def _enqueue_album(self) -> Run:
        """Enqueues a workflow: pictures, and an album of them, which adds a cover when it runs."""
        workflow = tasks.app.workflow("album")
        pictures = [workflow.add(tasks.picture, number, step=f"picture-{number}") for number in range(_PICTURES)]
        album = workflow.add(tasks.album, after=pictures, step="album")
        run = workflow.enqueue()
        self.enqueued["picture"] = [picture.id for picture in pictures]
        self.enqueued["album"] = [album.id]
        return run

    def _cancel(self, napping: Job[Any]) -> None:
        self._until(lambda: napping.refresh().state == State.RUNNING, "the nap has not begun")
        asked = time.monotonic()
        napping.cancel()
        self._until(lambda: napping.refresh().state in FINAL, "the nap does not end")
        self._remark(f"a running job was cancelled, and its body stopped {span(time.monotonic() - asked)} later")

    def _work_off(self) -> None:
        total = sum(map(len, self.enqueued.values())) + _GROWN
        has_killed = False
        live = (State.RUNNING, State.QUEUED, State.SCHEDULED, State.WAITING)
        while (done := sum((states := self._states())[state] for state in FINAL)) < total:
            self.workers.check()
            self.stage.count(done, total, ", ".join(f"{states[each]:,} {each}" for each in live if states[each]))
            if not has_killed and done >= total * _KILL_AT:
                has_killed = True
                self._kill_one()
            self._rest(counted(total - done, "job is left", "jobs are left"))
        self.stage.count(total, total, "all done")
        if not has_killed:
            raise Failure("everything was done before a worker could be killed; ask for more with --jobs")

    def _stop_clock(self) -> list[str]:
        """Pauses the schedule, waits for its jobs, and returns what is wrong with its slots."""
        tasks.app.pause_schedule("tick")
        self._until(lambda: not tasks.app.jobs(task="tick", state=_LIVE), "the schedule's jobs do not end")
        made = tasks.app.jobs(task="tick", limit=10_000)
        self.enqueued["tick"] = [job.id for job in made]
        problems = _slot_problems([job.slot for job in made])
        if not problems:
            times = counted(len(made), "time")
            self._remark(f"a schedule of every {_TICK:g} s fired {times}: each slot once, none was missed")
        return problems

    def _kill_one(self) -> None:
        """Kills a busy worker, waits until the other one has rescued its jobs, and starts a new worker."""
        pid = self.workers.pids[0]
        victim = next(worker for worker in self._live_workers() if worker.pid == pid)
        self.workers.kill(pid)
        killed_at = time.monotonic()
        self.killed.add(victim.id)
        held = self._held_by(victim.id)
        self.stage.tell(f"kill -9 {pid}: a worker is gone while it ran {counted(held, 'job')}")
        self._until(lambda: not self._held_by(victim.id), "the dead worker's jobs are not rescued")
        took = span(time.monotonic() - killed_at)
        self._remark(f"the other worker noticed, and rescued its {counted(held, 'job')} {took} after the kill")
        self.stage.tell(f"a new worker has replaced it: process {self.workers.start()}")

    def _remark_on(
        self, delayed: Job[Any], unique: Job[Any], second: Job[Any], album: Run, report: Job[Any]
    ) -> list[str]:
        """Tells what became of the jobs with a special part, and returns what is wrong with them."""
        problems: list[str] = []
        delayed.refresh()
        if delayed.started_at is not None:
            late = (delayed.started_at - delayed.run_at).total_seconds()
            self._remark(f"a job delayed by {_LATER:g} s started {span(max(0.0, late))} after its time")
        if second.duplicate and second.id == unique.id:
            self._remark(f"a second enqueue of a unique job returned the first one: {short(unique.id)}")
        else:
            problems.append(f"{second.id} (greet) was enqueued though {unique.id} holds its key")
        if album.state == State.COMPLETED:
            seen, (done, total) = album.job("album").result(1), album.progress
            grew = f"an album of {seen} pictures after them, and added a cover"
            self._remark(f"a workflow made {grew}: {done} of {total} steps done")
        percent, lines = report.refresh().progress.percent, len(report.logs())
        if percent == 100 and lines >= 8:
            self._remark(f"a report showed its progress (up to {percent:g}%) and logged {counted(lines, 'line')}")
        else:
            problems.append(f"{report.id} (report) has lost progress or log lines: {report.progress}")
        return problems

    def _accounts(self, cancelled: str) -> Accounts:
        with closing(sqlite3.connect(self.folder / "demo.db")) as connection:
            charges = Counter(row[0] for row in connection.execute("SELECT job_id FROM demo_charges"))
        evidence = Evidence(
            expected=self.enqueued,
            cancelled=frozenset({cancelled}),
            noted=tasks.read_ledger(self.folder / "ledger"),
            charges=charges,
            killed=frozenset(self.killed),
        )
        return compare(core_of(tasks.app).backend, evidence)

    def _states(self) -> dict[str, int]:
        """Counts the jobs that were enqueued here by state."""
        queues = tasks.app.stats(1).queues
        return {state: sum(queues[name].get(state, 0) for name in queues if name != _CLOCK) for state in State}

    def _live_workers(self) -> list[Any]:
        return [worker for worker in tasks.app.workers() if worker.state == "active"]

    def _held_by(self, worker_id: str) -> int:
        return sum(job.row.worker_id == worker_id for job in tasks.app.jobs(state="running", limit=1000))

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        while not holds():
            self.workers.check()
            self._rest(otherwise)

    def _rest(self, otherwise: str) -> None:
        if time.monotonic() > self.began + self.seconds:
            raise Failure(
                f"{otherwise} after {counted(self.seconds, 'second')}; give it more time (--seconds)", Code.FAILED
            )
        time.sleep(_PACE)

    def _remark(self, text: str) -> None:
        self.stage.tell(text)
        self.remarks.append(text)


def _slot_problems(slots: list[datetime | None]) -> list[str]:
    """Returns the slots that have no job or several, between the first and the last."""
    (info,) = tasks.app.schedules()
    passed = round(((info.last_at or info.created_at) - info.created_at).total_seconds() / _TICK)
    expected = Counter[datetime | None](info.created_at + timedelta(seconds=_TICK) * k for k in range(1, passed + 1))
    found = Counter(slots)
    return [f"slot {slot} was missed" for slot in expected - found] + [
        f"slot {slot} has one job too many" for slot in found - expected
    ]
