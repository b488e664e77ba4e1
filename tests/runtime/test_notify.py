"""What a service manager is told by `dray worker`, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.runtime.condition import Condition
from dray.runtime.notify import ManagedVoice, Manager, manager_of, status_of, voice_of
from dray.runtime.worker import Worker
from tests.runtime.stage import PATIENCE, await_that, descendants

TASKS = "import dray\napp = dray.App()\n@app.task\ndef add(a: int, b: int) -> int:\n    return a + b\n"


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(PATIENCE)

    def next(self) -> dict[str, str]:
        message = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in message.split("\n"))

    def until(self, name: str) -> dict[str, str]:
        """The next message that says this."""
        while True:
            message = self.next()
            if name in message:
                return message

    def until_silent(self, messages: int) -> None:
        """Waits until this many messages in a row are without a ping."""
        in_a_row = 0
        for _ in range(5_000):
            in_a_row = 0 if "WATCHDOG" in self.next() else in_a_row + 1
            if in_a_row == messages:
                return
        raise AssertionError("it goes on pinging")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd() -> Generator[Systemd]:
    with tempfile.TemporaryDirectory(prefix="dray-") as folder, closing(Systemd(f"{folder}/notify")) as manager:
        yield manager


@pytest.fixture
def worker(tmp_path: Path, url: str) -> Generator[Callable[..., subprocess.Popen[str]]]:
    """Starts `dray worker` as a service manager does."""
    (tmp_path / "tasks.py").write_text(TASKS)
    with App(url) as app:
        app.init()
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dray", "worker", "tasks:app", *words]
        environ = {**os.environ, "DRAY_URL": url, **environment}
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_is_ready_pings_starts_over_and_stops(
    worker: Callable[..., subprocess.Popen[str]], systemd: Systemd
) -> None:
    process = worker(NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="600000")
    ready = systemd.next()
    assert (ready["READY"], ready["STATUS"]) == ("1", "active, 0 jobs running")
    assert systemd.until("WATCHDOG")["WATCHDOG"] == "1"

    process.send_signal(signal.SIGHUP)
    assert int(systemd.until("RELOADING")["MONOTONIC_USEC"]) > 0
    systemd.until("READY")  # the same process, with the code as it is now
    assert process.poll() is None

    process.terminate()
    systemd.until("STOPPING")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert said.count(f"worker {process.pid} on ") == 2


def test_a_second_reload_while_it_starts_over_does_not_end_it(
    worker: Callable[..., subprocess.Popen[str]], systemd: Systemd, tmp_path: Path
) -> None:
    process = worker(NOTIFY_SOCKET=systemd.address)
    systemd.until("READY")
    again = "import os, signal, pathlib\nif pathlib.Path('again').exists():\n    os.remove('again')\n"
    (tmp_path / "tasks.py").write_text(f"{again}    os.kill(os.getpid(), signal.SIGHUP)\n{TASKS}")
    (tmp_path / "again").touch()

    process.send_signal(signal.SIGHUP)

    for _ in range(2):
        systemd.until("RELOADING")
        systemd.until("READY")
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_a_supervisor_speaks_for_its_workers(worker: Callable[..., subprocess.Popen[str]]) -> None:
    with closing(Systemd(f"@dray-test-{os.getpid()}")) as systemd:
        process = worker("--processes", "2", NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="3000000")
        assert systemd.until("READY")["STATUS"] == "active, 0 jobs running"
        before = descendants(process.pid)
        assert len(before) == 2
        systemd.until("WATCHDOG")

        process.send_signal(signal.SIGHUP)
        systemd.until("RELOADING")
        systemd.until("READY")
        after = descendants(process.pid)
        assert len(after) == 2
        assert not before & after

        process.terminate()
        systemd.until("STOPPING")
        assert process.wait(PATIENCE) == 0


def test_the_watchdog_is_the_engines(app_with_task: App, systemd: Systemd) -> None:
    made = Worker(core_of(app_with_task))
    voice = ManagedVoice(Manager(systemd.address, 0.03))
    may_go_on = threading.Event()
    with made:
        voice.started(made)
        assert systemd.next()["READY"] == "1"
        systemd.until("WATCHDOG")

        tick = made._engine.tick
        hangs = threading.Event()

        def hang() -> float:
            hangs.set()
            assert may_go_on.wait(PATIENCE)
            return tick()

        made._engine.tick = hang
        assert hangs.wait(PATIENCE)
        systemd.until_silent(10)  # the thread that would ping lives, and says how the worker is
        may_go_on.set()
        systemd.until("WATCHDOG")
        voice.close()


@pytest.fixture
def app_with_task(url: str) -> Generator[App]:
    with App(url) as app:

        @app.task(name="nothing")
        def nothing() -> None: ...

        assert nothing.name
        app.init()
        yield app


def test_a_supervisor_kills_a_worker_whose_engine_hangs(tmp_path: Path, systemd: Systemd) -> None:
    hung = f"""
import json, os, socket, sys, time
open(f"{tmp_path}/{{os.getpid()}}", "w").close()
condition = dict(worker="w", state="active", running=0, last_beat_age=0, is_healthy=True, is_ready=True, reason=None)
channel = socket.socket(fileno=int(os.environ["DRAY_REPORT_FD"]))
while True:
    channel.sendall(json.dumps(dict(condition=condition, steps=1, slots=1, attempts=[])).encode() + b"\\n")
    time.sleep(0.05)
"""
    run = f"""
import logging, sys
from dray.runtime import supervisor
from dray.runtime.fleet import Fleet
from dray.runtime.notify import Manager
supervisor._HANGS_AFTER = 0.2
logging.basicConfig(level="INFO", format="%(message)s")
made = supervisor.Supervisor(
    [sys.executable, "-c", {hung!r}], 1, 5.0, fleet=Fleet(), manager=Manager({systemd.address!r}, 0.2)
)
sys.exit(made.run())
"""
    with subprocess.Popen([sys.executable, "-c", run], stderr=subprocess.PIPE, text=True) as process:
        systemd.until("WATCHDOG")  # of the supervisor itself
        await_that(lambda: len(list(tmp_path.iterdir())) >= 2)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    assert "the engine of worker 1 hangs: killed" in said


@pytest.mark.parametrize(
    ("environment", "watchdog"),
    [
        ({}, "nobody"),
        ({"NOTIFY_SOCKET": "elsewhere"}, "nobody"),  # neither a path nor abstract
        ({"NOTIFY_SOCKET": "/run/notify"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000"}, 30.0),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "soon"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "9" * 400}, None),
    ],
)
def test_who_listens_is_in_the_environment(environment: dict[str, str], watchdog: Any) -> None:
    found = manager_of(environment)
    assert ("nobody" if found is None else found.watchdog) == watchdog


def test_a_watchdog_that_wants_to_hear_all_the_time_does_not_keep_a_worker_busy() -> None:
    assert Manager("/run/notify", 0.000_001).period == 0.01


def test_a_worker_with_a_supervisor_leaves_the_service_manager_to_it() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify"}
    assert isinstance(voice_of(environment), ManagedVoice)
    assert not isinstance(voice_of({**environment, "DRAY_SUPERVISED": "1"}), ManagedVoice)


def test_a_service_manager_that_is_gone_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = Manager(str(tmp_path / "gone"), None)
    manager.tell("READY=1")
    manager.stopping()
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "the service manager cannot be told (NOTIFY_SOCKET)"
    ]


def test_the_status_is_one_line() -> None:
    condition = Condition("id", "active", 2, 1.0, is_healthy=False, is_ready=False, reason="a\nWATCHDOG=1")
    assert status_of(condition) == "STATUS=active, 2 jobs running; a\\nWATCHDOG=1"
