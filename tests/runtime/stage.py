"""Runs bodies in child processes without a worker, and shows how they ended."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any

from dray.clock import Clock, SystemClock
from dray.model.job import Claim
from dray.model.settlement import Rng, Settlement
from dray.runtime.execution import Execution, StopCause
from dray.runtime.runners.process import ProcessRunner
from dray.task.task import Task
from tests.polling import pause

PATIENCE = 20.0
_numbers = itertools.count(1)


class Link:
    """Stands in for the engine and records what executions report."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.rng: Rng = random.Random(1)
        self.begun: list[Execution] = []
        self.notes = 0
        self.lines: list[str] = []
        self._changed = threading.Condition()

    @property
    def backend(self) -> Any:
        raise AssertionError("the body is in a child process: it has its own")

    def began(self, execution: Execution) -> None:
        self._tell(lambda: self.begun.append(execution))

    def written(self, execution: Execution) -> None:
        assert execution.is_written

    def note(self, execution: Execution) -> None:
        def take() -> None:
            self.notes += 1
            while execution.lines:
                self.lines.append(execution.lines.popleft().message)

        self._tell(take)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for an execution to report something."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE)

    def _tell(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


class Stage:
    """A process runner and its child processes; no process is left when the block ends."""

    def __init__(self, size: int = 2, lock: int | None = None, url: str = "sqlite:///unused.db") -> None:
        self.link = Link()
        self._over: Queue[tuple[Execution, Settlement | None]] = Queue()
        self._before = descendants()
        self.refused: list[Execution] = []
        clock = self.link.clock
        self.runner = ProcessRunner(size, self._report, self.refused.extend, clock, lambda: lock, url)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for execution in self.runner.take_back():
            execution.is_over = True
        for slot in self.runner.slots:
            if slot.execution is not None:
                self.runner.abandon(slot.execution)
        self.runner.close()
        assert self.runner.join(PATIENCE)
        await_that(lambda: descendants() <= self._before)  # one of those may have been about to end

    def _report(self, execution: Execution, settlement: Settlement | None) -> None:
        self._over.put((execution, settlement))

    def execution(self, task: Task[..., Any], **args: Any) -> Execution:
        return new_execution(self.link, task, **args)

    def start(self, task: Task[..., Any], **args: Any) -> Execution:
        execution = self.execution(task, **args)
        self.runner.start([execution])
        return execution

    def end(self) -> tuple[Execution, Settlement | None]:
        """Returns the next execution that has ended.

        As the stopper does, it repeats the request to executions that should stop and have not: a signal that arrives
        just before a call starts to sleep is seen only after that call.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                return self._over.get(timeout=0.2)
            except Empty:
                for slot in self.runner.slots:
                    if slot.execution is not None:
                        self.runner.stop(slot.execution)
        raise TimeoutError

    def settled(self) -> Settlement:
        """Returns the outcome of the next execution that has ended."""
        settlement = self.end()[1]
        assert settlement is not None
        return settlement

    def run(self, task: Task[..., Any], **args: Any) -> Settlement:
        self.start(task, **args)
        return self.settled()

    def result(self, task: Task[..., Any], **args: Any) -> Any:
        settlement = self.run(task, **args)
        assert settlement.state == "completed", settlement
        return json.loads(settlement.result or "null")

    def stop(self, execution: Execution, why: StopCause = StopCause.TIMEOUT) -> None:
        execution.stop = why
        self.runner.stop(execution)


def new_execution(link: Link, task: Task[..., Any], **args: Any) -> Execution:
    claim = Claim(
        id=f"job-{next(_numbers)}",
        claim=1,
        task=task.name,
        queue="default",
        args=json.dumps(args),
        attempt=1,
        max_attempts=2,
        crashes=0,
        max_crashes=3,
        timeout=args.get("timeout", 1.0),
        priority=0,
        run_at=0,
        workflow_id=None,
    )
    return Execution(claim, task, "a-worker", link)


def await_that(condition: Callable[[], bool]) -> None:
    """Polls for a condition that sends no signal, mostly the end of processes."""
    began = looked_at = time.monotonic()
    while not condition():
        assert looked_at < began + PATIENCE
        pause(began, looked_at)
        looked_at = time.monotonic()


def await_file(path: Path) -> None:
    await_that(path.exists)


def await_number(path: Path) -> int:
    """Returns the number that a body writes to a file, once the file exists."""
    await_that(lambda: path.exists() and path.stat().st_size > 0)
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    """Returns whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_files(pid: int) -> list[Path]:
    """What the descriptors of a process lead to. One may be closed while they are listed."""
    found: list[Path] = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(descriptor.readlink())
    return found


def group_members(group: int) -> list[int]:
    return [pid for pid, fields in _processes() if int(fields[2]) == group and fields[0] not in "ZX"]


def descendants(of: int | None = None) -> set[int]:
    """Returns the live processes that this process has started, directly or indirectly."""
    parents = {pid: int(fields[1]) for pid, fields in _processes() if fields[0] not in "ZX"}
    found, more = set[int](), {of or os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more}
        found |= more
    return found


def _processes() -> list[tuple[int, list[str]]]:
    found: list[tuple[int, list[str]]] = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - as is the next: it is asked often
        try:
            with open(f"/proc/{name}/stat") as stat:  # noqa: PTH123
                found.append((int(name), stat.read().rpartition(")")[2].split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
