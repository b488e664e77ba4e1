"""Several worker processes under a supervisor: which are restarted, which are not, and how all of them end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.runtime.stage import PATIENCE, await_that, descendants, is_alive

ROOT = Path(__file__).parents[2]

# Workers write a file with their number into a folder, and execute a line of code.
_WORKER = """
import os, signal, sys, time
from pathlib import Path
told = []
signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
signal.signal(signal.SIGINT, lambda number, _: told.append(number))
folder = Path(sys.argv[1])
(folder / f"{os.getpid()}.started").touch()
starts = len(list(folder.glob("*.started")))
def serve():
    while not told:
        time.sleep(0.005)
    (folder / f"{os.getpid()}.told").write_text(signal.Signals(told[0]).name)
"""

_SUPERVISOR = """
import logging, sys
from dray.runtime import supervisor
logging.basicConfig(level="INFO", format="%(message)s")
count, grace, worker, folder, *options = sys.argv[1:]
for name, value in (each.split("=") for each in options):
    setattr(supervisor, f"_{name.upper()}", int(float(value) * 1_000_000))
sys.exit(supervisor.Supervisor([sys.executable, "-c", worker, folder], int(count), float(grace)).run())
"""


class Family:
    """A supervisor in its own process, and its workers."""

    def __init__(self, folder: Path, work: str, count: int = 2, grace: float = 5.0, **options: float) -> None:
        self.folder = folder
        settings = [f"{name}={value}" for name, value in options.items()]
        self.supervisor = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISOR, str(count), str(grace), _WORKER + work, str(folder), *settings],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pids(self, kind: str = "started") -> list[int]:
        """Returns the pids of the workers so far, in the order of their starts."""
        files = sorted(self.folder.glob(f"*.{kind}"), key=lambda file: file.stat().st_mtime_ns)
        return [int(file.stem) for file in files]

    def await_starts(self, count: int) -> list[int]:
        await_that(lambda: len(self.pids()) >= count)
        return self.pids()

    def send(self, number: int) -> None:
        self.supervisor.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Waits for the supervisor; returns its exit code and its log."""
        said = self.supervisor.communicate(timeout=PATIENCE)[1]
        return self.supervisor.returncode, said


@pytest.fixture
def family(tmp_path: Path) -> Generator[Callable[..., Family]]:
    made: list[Family] = []

    def make(work: str, **options: float) -> Family:
        made.append(Family(tmp_path, work, **options))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield make
    for each in made:
        each.supervisor.kill()
        each.supervisor.communicate()
        await_that(lambda: not any(is_alive(pid) for pid in each.pids()))  # noqa: B023


def test_it_runs_as_many_workers_as_it_is_told_to_and_ends_with_them(family: Callable[..., Family]) -> None:
    found = family("serve()", count=3)
    workers = found.await_starts(3)

    found.send(signal.SIGTERM)

    code, said = found.ended()
    assert code == 0
    assert "SIGTERM: stopping 3 workers" in said
    assert {(found.folder / f"{pid}.told").read_text() for pid in workers} == {"SIGTERM"}


def test_workers_that_had_not_started_when_they_were_told_to_end_are_no_failure(
    family: Callable[..., Family],
) -> None:
    found = family("signal.signal(15, signal.SIG_DFL); (folder / 'starting').touch(); time.sleep(60)", count=1)
    await_that((found.folder / "starting").exists)

    found.send(signal.SIGTERM)

    assert found.ended()[0] == 0


def test_what_comes_from_the_terminal_is_passed_on_once(family: Callable[..., Family]) -> None:
    found = family("serve(); time.sleep(0.1); (folder / f'{len(told)}.times').touch()", count=1)
    found.await_starts(1)

    os.killpg(found.supervisor.pid, signal.SIGINT)  # as Ctrl-C does: to the supervisor's process group

    assert found.ended()[0] == 0
    assert [file.name for file in found.folder.glob("*.times")] == ["1.times"]


def test_one_that_dies_is_restarted(family: Callable[..., Family]) -> None:
    found = family("serve()", count=2)
    first, second = found.await_starts(2)

    os.kill(first, signal.SIGKILL)

    third = found.await_starts(3)[2]
    assert is_alive(second)
    assert is_alive(third)
    found.send(signal.SIGTERM)
    code, said = found.ended()
    assert code == 0
    assert "ended (SIGKILL); it restarts in 0.1 s" in said


def test_it_waits_longer_each_time_but_not_longer_than_it_may(family: Callable[..., Family]) -> None:
    found = family("sys.exit(1) if starts < 6 else serve()", count=1, first_pause=0.02, longest_pause=0.08)
    found.await_starts(6)

    found.send(signal.SIGTERM)

    said = found.ended()[1]
    pauses = [line.rsplit(" ", 2)[1] for line in said.splitlines() if "it restarts in" in line]
    assert pauses == ["0.0", "0.0", "0.1", "0.1", "0.1"]


def test_one_that_has_lived_for_long_is_restarted_without_a_long_wait(family: Callable[..., Family]) -> None:
    found = family("time.sleep(0.1); sys.exit(1)", count=1, first_pause=0.1, longest_pause=60, proven_after=0.05)

    found.await_starts(5)

    found.supervisor.kill()
    said = found.ended()[1]
    assert {line.rsplit(" ", 2)[1] for line in said.splitlines() if "it restarts in" in line} == {"0.1"}


def test_one_that_is_about_to_be_restarted_does_not_spoil_the_end(family: Callable[..., Family]) -> None:
    found = family("serve()", count=2, first_pause=60)
    first, _ = found.await_starts(2)
    os.kill(first, signal.SIGKILL)
    assert found.supervisor.stderr is not None
    while "it restarts in" not in found.supervisor.stderr.readline():
        pass

    found.send(signal.SIGTERM)

    assert found.ended()[0] == 0


def test_one_that_asks_for_a_new_process_gets_it_at_once(family: Callable[..., Family]) -> None:
    found = family("sys.exit(75) if starts < 4 else serve()", count=1, first_pause=60)

    found.await_starts(4)

    found.send(signal.SIGTERM)
    assert found.ended()[0] == 0


def test_those_that_have_done_their_work_are_not_restarted(family: Callable[..., Family]) -> None:
    found = family("sys.exit(0)", count=3)

    assert found.ended()[0] == 0
    assert len(found.pids()) == 3


@pytest.mark.parametrize("code", [2, 6])
def test_where_no_worker_can_work_none_is_restarted(family: Callable[..., Family], code: int) -> None:
    found = family(f"sys.exit({code})", count=2)

    assert found.ended()[0] == code
    assert len(found.pids()) <= 2


def test_one_that_has_worked_before_is_restarted_whatever_it_ended_with(family: Callable[..., Family]) -> None:
    found = family("(time.sleep(0.1), sys.exit(6)) if starts < 3 else serve()", count=1, proven_after=0.05)

    found.await_starts(3)

    found.send(signal.SIGTERM)
    assert found.ended()[0] == 0


def test_a_second_signal_ends_all_at_once(family: Callable[..., Family]) -> None:
    found = family("serve(); time.sleep(60)", count=2)
    workers = found.await_starts(2)
    found.send(signal.SIGTERM)
    await_that(lambda: len(found.pids("told")) == 2)

    found.send(signal.SIGTERM)

    assert found.ended()[0] == 128 + signal.SIGTERM
    assert not any(is_alive(pid) for pid in workers)


def test_workers_that_do_not_end_are_killed(family: Callable[..., Family]) -> None:
    found = family("serve(); time.sleep(60)", count=1, grace=-14.5)  # minus the time that the supervisor adds
    (worker,) = found.await_starts(1)
    begun = time.monotonic()

    found.send(signal.SIGTERM)

    code, said = found.ended()
    assert code == 128 + signal.SIGKILL
    assert "killed" in said
    assert time.monotonic() - begun < 5
    assert not is_alive(worker)


def test_workers_are_told_to_stop_when_their_supervisor_is_killed(family: Callable[..., Family]) -> None:
    found = family("serve()", count=2)
    workers = found.await_starts(2)

    found.supervisor.kill()
    found.ended()

    await_that(lambda: not any(is_alive(pid) for pid in workers))
    assert {(found.folder / f"{pid}.told").read_text() for pid in workers} == {"SIGTERM"}


def test_workers_know_that_they_have_a_supervisor(family: Callable[..., Family]) -> None:
    found = family("sys.exit('DRAY_SUPERVISED' not in os.environ)", count=1)

    assert found.ended()[0] == 0
    assert descendants(found.supervisor.pid) == set()
