"""Worker processes to measure: started as a user starts them, observed from outside, and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn

import dray
from benchmarks.arena import Arena
from dray.app_interface import core_of

ROOT = Path(__file__).parents[1]
_PATIENCE = 60.0
_SCHED = 2  # the kind of CPU clock in the low bits of a clock's id, see clock_getcpuclockid(3)


def environment(url: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "DRAY_URL": url, "PYTHONPATH": path, **(more or {})}


def python(url: str, *arguments: str, more: Mapping[str, str] | None = None) -> str:
    """Runs a Python program to its end and returns its output."""
    command, env = [sys.executable, *arguments], environment(url, more)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    _complain(done.stderr)
    done.check_returncode()
    return done.stdout


def _complain(log: str) -> None:
    """Shows errors, without the lines about worker starts and the warning about an old SQLite."""
    for line in log.splitlines(keepends=True):
        if " info " not in line and "dray: SQLite 3." not in line:
            sys.stderr.write(line)


@contextmanager
def workers(
    arena: Arena, app: dray.App, *options: Sequence[str], more: Mapping[str, str] | None = None
) -> Generator[list[int]]:
    """Starts one ``dray worker`` for each list of options, waits until all are registered, and yields their pids."""
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as log:
        try:
            for each in options:
                command = [sys.executable, "-m", "dray", "worker", "benchmarks.tasks:app", "--log-level", "warning"]
                started.append(_start([*command, *each], environment(arena.url, more), log))
            pids = [process.pid for process in started]
            until(lambda: _are_registered(app, pids), "the workers to register")
            yield pids
        finally:
            _end(started)
            log.seek(0)
            _complain(log.read().decode(errors="replace"))


def _start(command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=ROOT, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
    )


def _are_registered(app: dray.App, pids: Sequence[int]) -> bool:
    return set(pids) <= {worker.pid for worker in core_of(app).backend.workers.all() if worker.state == "active"}


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], what: str, *, pause: float = 0.005) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE:g} s for {what}")
        time.sleep(pause)


def cpu_ns(pid: int) -> int:
    """Returns the CPU time of a process and its children, over all threads, in nanoseconds."""
    own = time.clock_gettime_ns((~pid << 3) | _SCHED)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_ns(int(child)) for child in children)


def cpu_percent(pids: Sequence[int], seconds: float, meanwhile: Callable[[], None] | None = None) -> list[float]:
    """Returns the percentage of a core that each process uses during a time or an action."""
    started, before = time.monotonic_ns(), [cpu_ns(pid) for pid in pids]
    if meanwhile is None:
        time.sleep(seconds)
    else:
        meanwhile()
    after, elapsed = [cpu_ns(pid) for pid in pids], time.monotonic_ns() - started
    return [100 * (late - early) / elapsed for early, late in zip(before, after, strict=True)]


def wake_ups(pid: int) -> int:
    """Returns how often the threads of a process, which now live, have waited for something and woken up."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread has just ended
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            found += int(lines["voluntary_ctxt_switches"])
    return found


def memory_mb(pid: int) -> tuple[float, float]:
    """Returns the resident memory and the proportional set size (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return sizes["Rss"], sizes["Pss"]


def run_until_stopped(main: Callable[[], None]) -> None:
    """Runs a benchmark. SIGTERM ends it as Ctrl-C does: processes are ended and files removed on the way out."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with suppress(KeyboardInterrupt):
        main()
