"""Worker processes for tests: started, stopped, killed, looked at, and gone when the test is over.

    def test_something(fleet: Fleet) -> None:
        job = fleet.enqueue("quick", label="a")        # by name, of tests.processes.apps
        worker = fleet.start(lease=3, concurrency=2)   # options of app.worker()
        fleet.until(lambda: fleet.ledger.ends("a"))
        worker.kill()

Every process that a fleet starts, and whatever those start, carries a mark in its environment: that is how processes
that were left behind are found. There may be none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg

import dray
from dray.address import PostgresAddress, parse_address
from dray.app_interface import core_of
from dray.handle.job import Job
from dray.ops.audit import audit
from tests.backends.processes import raw_sql
from tests.forks import MARK, Forked, fork_program
from tests.polling import pause
from tests.processes import ledger
from tests.processes.ledger import Ledger

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds; only a hang takes that long
APPS = "tests.processes.apps"

T = TypeVar("T")


class Process:
    """One worker process, or anything else that a fleet has started."""

    def __init__(self, popen: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.log = log
        self._popen = popen
        self.pid = popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> float:
        """kill -9; when it was gone, by CLOCK_MONOTONIC."""
        if self.is_alive:
            self.send(signal.SIGKILL)
        self.wait()
        return time.monotonic()

    def pause(self) -> None:
        """SIGSTOP, and waits until it stands still."""
        self.send(signal.SIGSTOP)
        until(lambda: _status(self.pid) == "T", f"process {self.pid} to stand still")

    def go_on(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: it is to end in order."""
        self.send(signal.SIGTERM)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits for the end; the exit code, negative for a signal."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} does not end; its log:\n{self.said}") from None

    def end(self, seconds: float = PATIENCE) -> int:
        """SIGTERM and waits; the exit code."""
        self.terminate()
        return self.wait(seconds)

    @property
    def said(self) -> str:
        """All of its log."""
        return self.log.read_text(errors="replace")

    def lines(self, *levels: str) -> list[str]:
        """The lines of its log of these levels."""
        return [line for line in self.said.splitlines() if line.startswith(levels)]

    @property
    def remarks(self) -> list[str]:
        """The lines of its log but those that a job has completed, which are no more than asked for."""
        return [line for line in self.said.splitlines() if not _COMPLETED.search(line)]


_COMPLETED = re.compile(r"job [0-9a-f]{8} \(.+\) completed in |jobs ended in the last second: [\d,]+ completed$")


class Fleet:
    """One database, its ledger, and the processes that a test starts there."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.app = dray.App(url)
        core_of(self.app).backend.migrate()
        self.ledger = Ledger(folder / "ledger")
        self.is_sqlite = url.startswith("sqlite")
        self.processes: list[Process] = []
        self._mark = secrets.token_hex(8)
        self._older = set(_all_pids())  # none of them is ours: to look at each took 10 ms
        self._found_left: list[int] = []
        self._prompt: psycopg.Connection[Any] | None = None
        self._prompt_lock = threading.Lock()

    # Processes

    def start(self, module: str = APPS, *, environment: Mapping[str, str] | None = None, **options: Any) -> Process:
        """A worker of the App in a module, running and registered when this returns."""
        worker = self.launch(module, environment=environment, **options)
        self.until(lambda: self.worker_of(worker), f"worker {worker.pid} to register")
        return worker

    def launch(self, module: str = APPS, *, environment: Mapping[str, str] | None = None, **options: Any) -> Process:
        """The same, without waiting for it."""
        return self.fork(["-m", "tests.processes.serve", module, json.dumps(options)], environment)

    def still(self, worker: Process) -> None:
        """Stops a worker where it holds no lock of SQLite's: with one it would keep everybody waiting."""
        while True:
            worker.pause()
            if not self.is_sqlite or self._is_writable():
                return
            worker.go_on()

    def _is_writable(self) -> bool:
        path = core_of(self.app).settings.url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=0.2, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def start_dray(self, *arguments: str) -> Process:
        """A worker from the command line: ``dray worker``."""
        worker = self.run(["-m", "dray", "worker", f"{APPS}:app", *arguments])
        self.until(lambda: self.worker_of(worker), f"worker {worker.pid} to register")
        return worker

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, under: Sequence[str] = ()
    ) -> Process:
        """Any Python program, for example ``["-m", "dray", "worker", ...]``, under another that becomes it."""
        # Warnings of ours are errors here too; those of a resource that a killed process leaves are nobody's.
        command = [*under, sys.executable, "-W", "error", *arguments]
        log = self._new_log()
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._add(Process(popen, log))

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """The same, forked from a process that has loaded Dray."""
        log = self._new_log()
        log.touch()
        everything = {**self.environment, **(environment or {})}
        return self._add(Process(fork_program(arguments, everything, ROOT, log), log))

    def _new_log(self) -> Path:
        return self.folder / f"log-{len(self.processes) + 1}"

    def _add(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DRAY_URL": self.url,
            MARK: self._mark,
            ledger.VARIABLE: str(self.ledger.path),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYTHONUNBUFFERED": "1",
        }

    def close(self) -> None:
        """Kills what runs; nothing of it may be left a moment later."""
        self.app.close()
        if self._prompt is not None:
            self._prompt.close()
        for process in self.processes:
            process.kill()
        with contextlib.suppress(AssertionError):
            until(self.is_alone, "what dies with its worker to be gone", seconds=10)
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes {left} have outlived their worker"

    def left(self) -> list[int]:
        """Every living process of this fleet that is none of those it has started itself."""
        own = {process.pid for process in self.processes if process.is_alive}
        pids = set(_all_pids())
        self._older &= pids  # the number of one that has ended may be given to one of ours
        return [pid for pid in sorted(pids - own - self._older) if _is_marked(pid, self._mark)]

    def is_alone(self) -> bool:
        """Whether none is left. While one is that was found before, no other is looked for: there are hundreds of
        processes to look at."""
        if not any(_is_marked(pid, self._mark) for pid in self._found_left):
            self._found_left = self.left()
        return not self._found_left

    # Jobs

    def enqueue(self, task: str, /, *, using: Mapping[str, Any] | None = None, **args: Any) -> Job[Any]:
        """A job of a task in `apps` (or of any, by its whole name)."""
        name = task if "." in task else f"{APPS}.{task}"
        options: Any = using or {}
        return self.app.enqueue(name, args, **options)

    def enqueue_many(self, task: str, args: Sequence[Mapping[str, Any]], **using: Any) -> list[Job[Any]]:
        """One transaction; the task is in `apps`."""
        from dray.model.new_job import NewJob

        made = [
            NewJob(id=core_of(self.app).new_id(), task=f"{APPS}.{task}", args=json.dumps(dict(each)), **using)
            for each in args
        ]
        return [Job(core_of(self.app), each.id) for each in core_of(self.app).backend.jobs.enqueue(made)]

    def states(self) -> dict[str, int]:
        """How many jobs are in which state; a final one with its reason."""
        rows = self.sql("SELECT state, reason, count(*) FROM dray_jobs GROUP BY state, reason")
        return {state if reason is None else f"{state}({reason})": count for state, reason, count in rows}

    def outcomes(self, job: Job[Any]) -> list[str]:
        """The recorded attempts, oldest first."""
        return [attempt.outcome for attempt in job.attempts()]

    # Looking

    def until(self, condition: Callable[[], T], what: str = "it", seconds: float = PATIENCE) -> T:
        """Waits for a condition; the answer that was true."""
        return until(condition, what, seconds, self.describe)

    def ended(self, jobs: Sequence[Job[Any]], seconds: float = PATIENCE) -> None:
        """Waits until all these jobs have."""
        ids = [job.id for job in jobs]
        self.until(lambda: len(core_of(self.app).backend.jobs.ended(ids).jobs) == len(ids), "jobs to end", seconds)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """What somebody at a SQL prompt sees."""
        if self.is_sqlite:
            return raw_sql(self.url, statement)
        with self._prompt_lock:
            # Kept, because some ask often, and a session costs the server 10 ms. What can be read from it now is the
            # server's good-bye.
            if self._prompt is not None and select.select([self._prompt], [], [], 0)[0]:
                self._prompt.close()
                self._prompt = None
            if self._prompt is None:
                address = parse_address(self.url)
                assert isinstance(address, PostgresAddress)
                self._prompt = psycopg.connect(address.conninfo, autocommit=True)
                if address.schema is not None:
                    self._prompt.execute(f'SET search_path TO "{address.schema}"'.encode())
            cursor = self._prompt.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def worker_of(self, process: Process) -> str | None:
        """The id of the live worker in a process."""
        return next((worker_id for worker_id, pid in self.live_workers() if pid == process.pid), None)

    def live_workers(self) -> list[tuple[str, int]]:
        """(id, pid) of all workers that nobody has declared dead and that have not left, newest first."""
        listed = core_of(self.app).backend.workers.all()
        return [(worker.id, worker.pid) for worker in listed if worker.state in {"active", "draining"}]

    def worker_state(self, worker_id: str) -> str:
        return next(worker.state for worker in core_of(self.app).backend.workers.all() if worker.id == worker_id)

    def duties_of(self, worker_id: str) -> set[str]:
        """The duties that a worker holds."""
        return {lease.duty for lease in core_of(self.app).backend.leases.all() if lease.holder == worker_id}

    def describe(self) -> str:
        """For those who wonder why a test failed."""
        logs = "\n".join(f"-- log of {p.pid} ({p.log.name}):\n{p.said[-3000:]}" for p in self.processes[-4:])
        said = "\n".join(map(str, self.ledger.entries()[-20:]))
        try:
            seen = f"jobs: {self.states()}\nworkers: {self.live_workers()}"
        except Exception as error:  # noqa: BLE001 - the database may be what is missing
            seen = repr(error)
        return f"{seen}\nledger:\n{said}\n{logs}"

    def audit(self) -> None:
        """What must hold of the tables once all is quiet."""
        assert audit(core_of(self.app).backend).broken == ()
        assert self.ledger.entries("overlap") == [], "an attempt ran beside an earlier one"


def until(
    condition: Callable[[], T],
    what: str = "it",
    seconds: float = PATIENCE,
    describe: Callable[[], str] = lambda: "",
) -> T:
    """Waits for a condition; the answer that was true."""
    began = looked_at = time.monotonic()
    while not (answer := condition()):
        assert looked_at < began + seconds, f"waited {seconds:g} s for {what} in vain\n{describe()}"
        pause(began, looked_at)
        looked_at = time.monotonic()
    return answer


def side_by_side(fleets: Sequence[Fleet], scenario: Callable[[Fleet], None]) -> None:
    """The same at once on several databases, because it mostly waits; all that went wrong is told."""
    with ThreadPoolExecutor(len(fleets)) as threads:
        runs = [threads.submit(scenario, fleet) for fleet in fleets]
    errors = [error for run in runs if (error := run.exception()) is not None]
    if errors:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup("on several databases", errors)


def _status(pid: int) -> str:
    """One letter: R runs, S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as is the next: it is faster


def _is_marked(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"{MARK}={mark}".encode() in file.read()
    except OSError:  # it has ended
        return False


__all__ = ["APPS", "PATIENCE", "ROOT", "Fleet", "Process", "side_by_side", "until"]
