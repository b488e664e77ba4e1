"""``dray health``, and ``dray worker --health-port``: what probes are told."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from operator import attrgetter
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.errors import StorageUnavailable
from dray.runtime import health
from dray.runtime.condition import Condition
from tests.backends.processes import raw_sql
from tests.cli.examined import MINUTE, set_back
from tests.cli.shell import Shell, until
from tests.forks import Forked

FACTS = {
    *("is_healthy", "database", "problems", "version", "workers", "free_duties", "oldest_ready", "failed"),
}


def add(a: int, b: int) -> int:
    return a + b


def fail() -> None:
    raise ValueError("no")


@pytest.fixture
def app(shell: Shell) -> Generator[App]:
    """On the shell's database, with its tables."""
    made = App(shell.url)
    core_of(made).backend.migrate()
    made.task(name="add")(add)
    made.task(name="fail", max_attempts=1)(fail)
    yield made
    made.close()


def asked(shell: Shell, *words: str) -> tuple[int, str]:
    done = shell.try_("health", *words)
    assert done.err == ""
    return done.code, done.value


# The command


def test_a_queue_needs_a_worker(shell: Shell, app: App) -> None:
    assert asked(shell) == (1, "not healthy: no worker is alive")
    assert asked(shell, "--min-workers", "0")[0] == 0
    with app.worker():
        assert asked(shell) == (0, "ok: 1 worker alive")
        assert asked(shell, "--min-workers", "2") == (1, "not healthy: only 1 worker alive, not 2")


def test_one_worker_by_its_name_or_the_end_of_its_id(shell: Shell, app: App) -> None:
    with app.worker(name="first") as worker:
        assert asked(shell, "--worker", "first")[0] == 0
        assert asked(shell, "--worker", worker.id)[0] == 0
        assert asked(shell, "--worker", worker.id[-8:])[0] == 0
        assert asked(shell, "--worker", "second") == (1, "not healthy: worker 'second' is not alive")


@pytest.mark.parametrize(
    ("part", "verb", "says"),
    [
        ("_backend.work", "exchange", "first cannot use the database: away"),
        ("_beats.workers", "beat", "first has missed two beats and more"),
    ],
)
def test_a_worker_that_cannot_work_does_not_count(
    shell: Shell, app: App, monkeypatch: pytest.MonkeyPatch, part: str, verb: str, says: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StorageUnavailable("away")

    with app.worker(name="first", lease=1.5) as worker:
        with monkeypatch.context() as broken:
            broken.setattr(attrgetter(part)(worker), verb, refuse)
            app.enqueue("add", {"a": 1, "b": 2})
            until(lambda: asked(shell) == (1, f"not healthy: no worker can work: {says}"))
            why = f"not healthy: worker {says}".replace("first", "'first'")
            assert asked(shell, "--worker", "first", "--min-workers", "0") == (1, why)
            with app.worker(name="second", queues=["other"]):
                assert asked(shell) == (0, "ok: 1 worker alive")
                few = f"not healthy: only 1 worker can work, not 2: {says}"
                assert asked(shell, "--min-workers", "2") == (1, few)
        until(lambda: asked(shell, "--worker", "first") == (0, "ok: 1 worker alive"))


def test_how_long_jobs_may_wait_and_how_many_may_fail(shell: Shell, app: App) -> None:
    app.enqueue("add", {"a": 1, "b": 2}, queue="mail")
    set_back(shell.url, "dray_jobs", "run_at", 10 * MINUTE)
    anyone = ["--min-workers", "0"]

    assert asked(shell, *anyone, "--max-age", "1h") == (
        0,
        "ok: 0 workers alive; the oldest ready job has waited for 10m",
    )
    late = "not healthy: the oldest ready job in queue mail has waited for 10m"
    assert asked(shell, *anyone, "--queue", "mail", "--max-age", "5m") == (1, late)
    assert asked(shell, *anyone, "--queue", "other", "--max-age", "5m")[0] == 0
    for _ in range(2):
        app.enqueue("fail")
    app.worker().run_until_idle()
    assert asked(shell, *anyone, "--max-failed", "2")[0] == 0
    wrong = "not healthy: 2 jobs failed in the last 60m"
    assert asked(shell, *anyone, "--max-failed", "1") == (1, wrong)
    set_back(shell.url, "dray_jobs", "finished_at", 2 * MINUTE)
    assert asked(shell, *anyone, "--max-failed", "1", "--window", "1m")[0] == 0


def test_a_duty_that_has_had_no_worker_for_long(shell: Shell, app: App) -> None:
    with app.worker() as worker:
        until(lambda: len(raw_sql(shell.url, f"SELECT 1 FROM dray_leases WHERE holder = '{worker.id}'")) >= 5)
        assert asked(shell)[0] == 0
    # As if its worker had been there for a while, and did nothing.
    raw_sql(shell.url, "UPDATE dray_workers SET state = 'active', stopped_at = NULL, boot = 'elsewhere', lock = NULL")
    raw_sql(shell.url, f"UPDATE dray_workers SET lease_until = lease_until + {_an_hour(shell)}")
    assert asked(shell)[0] == 0
    set_back(shell.url, "dray_workers", "started_at", MINUTE)

    code, said = asked(shell)

    assert code == 1
    assert re.fullmatch(r"not healthy: no worker has the duties promote, fan-out, \S+ and \d more", said)


def _an_hour(shell: Shell) -> str:
    return str(3_600_000_000) if shell.url.startswith("sqlite") else "interval '1 hour'"


def test_facts_in_json(shell: Shell, app: App) -> None:
    app.enqueue("add", {"a": 1, "b": 2})

    done = shell.try_("health", "--json", "--max-age", "1h", "--max-failed", "0")

    assert done.code == 1
    assert set(done.json) == FACTS
    assert done.json["problems"] == ["no worker is alive"]
    assert (done.json["workers"], done.json["failed"], done.json["free_duties"]) == (0, 0, [])
    assert 0 < done.json["oldest_ready"] < 600


def test_a_database_out_of_reach_is_one_line_and_1(local: Shell) -> None:
    code, said = asked(local)
    assert (code, said) == (1, f"not healthy: {local.folder}/dray.db: there is no such file")
    assert not list(local.folder.glob("*.db*"))

    done = local.try_("health", "--json", DRAY_URL="postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2")
    assert done.code == 1
    assert done.json["problems"][0].startswith("postgresql://user:***@127.0.0.1:1/db")
    assert "canary" not in done.out + done.err


def test_tables_that_do_not_fit(local: Shell) -> None:
    local("db", "init")
    raw_sql(local.url, "UPDATE dray_meta SET value = '999'")

    code, said = asked(local)

    assert code == 1
    assert said.startswith("not healthy: the tables (version 999) need a Dray that knows version 999")


@pytest.mark.parametrize(
    "words",
    [["--min-workers", "-1"], ["--max-age", "soon"], ["--queue", "mail"], ["--queue", "a,b", "--max-age", "1"]],
    ids=" ".join,
)
def test_wrong_usage(local: Shell, words: list[str]) -> None:
    done = local.try_("health", *words)

    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


# Over HTTP


class Probed:
    """A worker that serves probes."""

    def __init__(self, process: Forked, port: int) -> None:
        self.process = process
        self.port = port

    def get(self, path: str, method: str = "GET") -> tuple[int, Any]:
        request = Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or "null")

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            return answer.read().decode()


@contextmanager
def probed(shell: Shell, *words: str, starts_python: bool = False) -> Generator[Probed]:
    shell("db", "init")
    with shell.background("worker", "--health-port", "0", *words, starts_python=starts_python) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "probes are served" in line)
        found = re.search(r" http://127\.0\.0\.1:(\d+)/health$", said.rstrip())
        assert found is not None
        worker = Probed(process, int(found[1]))
        until(lambda: worker.get("/ready")[0] == 200)
        yield worker


def test_a_worker_answers_for_itself(shell: Shell) -> None:
    with probed(shell) as worker:
        status, found = worker.get("/health")
        shell("enqueue", "tasks.sleep", "seconds=3600")
        until(lambda: worker.get("/health")[1]["running"] == 1)
        elsewhere = [worker.get(path) for path in ("/", "/healthz", "/health/")]
        (known,) = shell("workers").rows
        assert worker.get("/ready?from=here")[0] == 200
        assert worker.get("/health", "HEAD") == (200, None)
        worker.process.terminate()
        until(lambda: worker.get("/ready")[0] == 503)
        assert worker.get("/health")[1]["state"] == "draining"
        assert worker.get("/health")[0] == 200
        worker.process.terminate()
        assert worker.process.wait(30) == 128 + signal.SIGTERM

    assert status == 200
    assert set(found) == {"worker", "state", "running", "last_beat_age", "is_healthy", "is_ready", "reason"}
    assert (found["worker"], found["state"], found["running"]) == (known[0], "active", 0)
    assert (found["is_healthy"], found["is_ready"]) == (True, True)
    assert 0 <= found["last_beat_age"] < 15
    assert [code for code, _ in elsewhere] == [404, 404, 404]


def test_a_worker_that_cannot_renew_its_lease_is_not_healthy(local: Shell) -> None:
    with probed(local, "--lease", "1") as worker:
        with closing(sqlite3.connect(local.folder / "dray.db", timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            until(lambda: worker.get("/health")[0] == 503)
            assert worker.get("/health")[1]["last_beat_age"] > 2 / 3
            assert "renew its lease" in worker.get("/ready")[1]["reason"]
            assert worker.get("/ready")[0] == 503
            connection.execute("ROLLBACK")
        until(lambda: worker.get("/health")[0] == 200)
        until(lambda: worker.get("/ready")[0] == 200)


def test_silent_connections_block_neither_probes_nor_the_end_of_the_worker(local: Shell) -> None:
    with probed(local) as worker, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", worker.port))))
        until(lambda: _answers(worker))
        stack.enter_context(closing(socket.create_connection(("127.0.0.1", worker.port)))).sendall(b"GET /hea")
        began = time.monotonic()
        worker.process.terminate()
        assert worker.process.wait(30) == 0
        assert time.monotonic() - began < 20
        assert "Traceback" not in worker.process.communicate()[1]


def test_slow_clients_keep_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight that send half a request, then as many that do not read what they are sent."""
    monkeypatch.setattr(health, "_LONGEST", 3600.0)
    monkeypatch.setattr(health._Handler, "timeout", 3600.0)
    condition = Condition("id", "active", 0, 0.0, is_healthy=True, is_ready=True)
    endpoint = health.Endpoint("127.0.0.1", 0, lambda: condition, lambda: "#" * 20_000_000)
    endpoint.start()
    with ExitStack() as stack:
        for request in (b"GET /hea", b"GET /metrics HTTP/1.0\r\n\r\n"):
            for _ in range(health._AT_ONCE):
                slow = socket.create_connection(("127.0.0.1", endpoint.port))
                stack.enter_context(closing(slow)).sendall(request)
            with urlopen(f"http://127.0.0.1:{endpoint.port}/health", timeout=30) as found:
                assert found.status == 200
    endpoint.close()


def test_threads_are_bounded_although_their_connections_were_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_THREADS", 10)
    may_go_on = threading.Event()
    condition = Condition("id", "active", 0, 0.0, is_healthy=True, is_ready=True)

    def slow_metrics() -> str:
        may_go_on.wait(60)
        return ""

    endpoint = health.Endpoint("127.0.0.1", 0, lambda: condition, slow_metrics)
    endpoint.start()
    with ExitStack() as stack:
        held = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(11)]
        for each in held:
            stack.enter_context(closing(each)).sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        held[-1].settimeout(30)
        assert _was_refused(held[-1])
        may_go_on.set()
        until(lambda: _is_well(endpoint.port))
    endpoint.close()


def _was_refused(connection: socket.socket) -> bool:
    """Whether it was closed, and nothing was said."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def _is_well(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as found:
            return found.status == 200
    except OSError:
        return False


def _answers(worker: Probed) -> bool:
    try:
        return worker.get("/health")[0] == 200
    except OSError:
        return False


def test_a_request_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_LONGEST", 0.3)
    monkeypatch.setattr(health, "_SWEEP", 0.05)
    condition = Condition("id", "active", 0, 0.0, is_healthy=True, is_ready=True)
    endpoint = health.Endpoint("127.0.0.1", 0, lambda: condition)
    endpoint.start()
    with closing(socket.create_connection(("127.0.0.1", endpoint.port))) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n")
        connection.settimeout(0.02)
        until(lambda: _has_ended(connection))
    endpoint.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", endpoint.port))


def _has_ended(connection: socket.socket) -> bool:
    """Says a little more, which is never enough."""
    try:
        connection.sendall(b"X-More: yes\r\n")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "NONSENSE"])
def test_another_method_is_not_allowed(method: str) -> None:
    condition = Condition("id", "active", 0, 0.0, is_healthy=True, is_ready=True)
    endpoint = health.Endpoint("127.0.0.1", 0, lambda: condition)
    endpoint.start()
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"http://127.0.0.1:{endpoint.port}/health", method=method), timeout=30)
    endpoint.close()

    with refused.value as answer:
        assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")
        assert json.loads(answer.read()) == {"error": "only GET and HEAD are answered"}


def test_a_port_in_use_is_said_before_anything_is_claimed(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = shell.try_("worker", "--burst", "--health-port", str(port))

    assert done.code == 1
    assert done.err == (
        f"dray: cannot serve probes on 127.0.0.1:{port}: Address already in use; choose another --health-port\n"
    )
    assert shell("job", "show", job_id, "--json").json["state"] == "queued"
    assert shell("workers", "--all").rows == []


def test_a_host_for_probes_without_a_port_is_refused(local: Shell) -> None:
    done = local.try_("worker", "--burst", "--health-host", "0.0.0.0")

    assert done.code == 2
    assert done.err == (
        "dray: --health-host goes with --health-port, which says where probes are served; see `dray worker --help`\n"
    )


def test_metrics_of_one_worker(shell: Shell) -> None:
    with probed(shell, "-c", "3") as worker:
        shell("enqueue", "tasks.add", "a=1", "b=2", "--wait")
        until(lambda: 'dray_worker_attempts_total{queue="default",outcome="completed"} 1\n' in worker.metrics())
        text = worker.metrics()
        assert worker.get("/metrics", "HEAD") == (200, None)

    lines = text.splitlines()
    assert {"dray_up 1", "dray_slots 3", "dray_worker_slots 3", "dray_worker_healthy 1"} <= {*lines}
    assert 'dray_workers{state="active"} 1' in lines


def test_a_supervisor_answers_for_all_its_workers(shell: Shell) -> None:
    with probed(shell, "--processes", "2", "-c", "3", starts_python=True) as worker:
        until(lambda: "dray_worker_processes 2\n" in worker.metrics())
        status, found = worker.get("/health")
        shell("enqueue", "tasks.add", "a=1", "b=2", "--wait")
        until(lambda: 'dray_worker_attempts_total{queue="default",outcome="completed"} 1\n' in worker.metrics())
        until(lambda: "dray_slots 6\n" in worker.metrics())  # it is read again after a few seconds
        lines = worker.metrics().splitlines()
        assert len(shell("workers").rows) == 2
        # The end of the supervisor is the end of its workers, though none was told.
        worker.process.kill()
        until(lambda: shell("workers").rows == [])

    assert (status, found["worker"], found["is_ready"]) == (200, None, True)
    assert {"dray_up 1", "dray_worker_slots 6", "dray_worker_ready 1"} <= {*lines}


def test_no_port_no_thread_and_no_module(local: Shell) -> None:
    local.write(
        "tasks.py",
        "import sys, threading, dray\napp = dray.App()\n@app.task\ndef look() -> list[object]:\n"
        "    return ['http.server' in sys.modules, 'dray-health' in [t.name for t in threading.enumerate()]]\n",
    )
    job_id = local("enqueue", "tasks.look").value
    assert local.fresh("worker", "--burst").code == 0

    assert local("job", "show", job_id, "--json").json["result"] == [False, False]
