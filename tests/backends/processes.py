"""Other operating system processes for these tests: how to start one and talk to it, and what they do.

`Process(body, ...)` runs one of the functions below in a process that is forked from one which has loaded Dray, or,
where the end of the interpreter or its size matters, in a fresh one: that takes 0.15 s longer. Both sides communicate
over its standard input and output, one JSON value per line: `tell` and `hear` in the process, `say` and `hear` in the
test. Bodies do not import the test framework, so that many of them start quickly on two cores.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from dray import App
from dray.address import PostgresAddress, SqliteAddress, parse_address
from dray.app_interface import core_of
from dray.backends import Backend, migrate, open_backend
from dray.backends.sqlite import SqliteDatabase
from dray.backends.store import jobs
from dray.clock import Ids, SystemClock
from dray.errors import DrayError
from dray.model.job import Claim, Demand
from dray.model.new_job import NewJob
from dray.model.settlement import completed
from dray.model.worker import NewWorker
from tests.forks import Forked, Passed, become

ROOT = Path(__file__).parents[2]
NOBODY = 65534
PATIENCE = 60.0  # seconds; only a process that hangs takes this long

_ids = Ids(SystemClock())


# In the test


class Process:
    """A process that runs `body`, and its forks. All of them are gone when the block ends."""

    def __init__(
        self, body: Callable[..., Any], *args: Any, under: Sequence[str] = (), is_fresh: bool = False
    ) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        streams = (read, write, self.complaints.fileno())
        is_started = is_fresh or bool(under)
        self._process = _started(body, args, streams, under) if is_started else _forked(body, args, streams)
        for passed in (read, write):
            os.close(passed)
        self.pid = self._process.pid
        self._heard = b""

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):  # one that was forked and has ended
            os.killpg(self.pid, signal.SIGKILL)  # with all its forks
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self.complaints.close()

    def say(self, value: Any = None) -> None:
        """Sends one value; the process receives it with `hear`."""
        os.write(self._write, json.dumps(value).encode() + b"\n")

    def hear(self) -> Any:
        """Returns the next value that the process sends."""
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._read, 1 << 16) if ready else b""
            assert more, f"process {self.pid} said no more; {self._complained()}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def kill(self) -> None:
        """Kills the process with SIGKILL and waits until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Waits for the end of the process (not of its children); returns its exit code."""
        if isinstance(self._process, Forked):
            return self._process.wait(PATIENCE)
        descriptor = os.pidfd_open(self.pid)
        try:
            ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        finally:
            os.close(descriptor)
        assert ready, f"process {self.pid} does not end; {self._complained()}"
        # Not reaped: its pid stays in use, so that __exit__ cannot kill an unrelated process group.
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        return end.si_status

    def answer(self) -> Any:
        """Returns the value that `body` returned; the process must have succeeded."""
        value = self.hear()
        code = self.ended()
        assert code == 0, f"process {self.pid} ended with {code}; {self._complained()}"
        return value

    def _complained(self) -> str:
        self.complaints.seek(0)
        return self.complaints.read().decode(errors="replace")


def _started(
    body: Callable[..., Any], args: Sequence[Any], streams: tuple[int, int, int], under: Sequence[str]
) -> subprocess.Popen[bytes]:
    command = [*under, sys.executable, "-W", "error", "-m", body.__module__, body.__name__, json.dumps(args)]
    stdin, stdout, stderr = streams
    return subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)


def _forked(body: Callable[..., Any], args: Sequence[Any], streams: tuple[int, int, int]) -> Forked:
    return Forked(_run_forked, (body, args, dict(os.environ), [Passed(each) for each in streams]))


def _run_forked(
    body: Callable[..., Any], args: Sequence[Any], environment: dict[str, str], streams: Sequence[Passed]
) -> None:
    os.setsid()
    become(environment, ROOT, [passed.descriptor for passed in streams])
    tell(body(*args))


def ask(body: Callable[..., Any], *args: Any, under: Sequence[str] = (), is_fresh: bool = False) -> Any:
    """Runs `body` in its own process and returns its value."""
    with Process(body, *args, under=under, is_fresh=is_fresh) as process:
        return process.answer()


def ask_together(body: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> list[Any]:
    """Runs `body` in one process per call. They all continue at the same moment, once each `is_ready`."""
    processes = [Process(body, *args) for args in calls]
    try:
        for process in processes:
            assert process.hear() == "ready"
        for process in processes:
            process.say()
        return [process.answer() for process in processes]
    finally:
        for process in processes:
            process.__exit__(None, None, None)


def raw_sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement as at a SQL prompt, without Dray."""
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        connection = sqlite3.connect(address.path)
        try:
            with connection:
                return connection.execute(statement).fetchall()
        finally:
            connection.close()
    assert isinstance(address, PostgresAddress)
    from tests.prompt import prompt  # here: a process on SQLite starts without the driver

    with prompt(address.conninfo, address.schema) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def job_ids(url: str) -> list[str]:
    """Returns the ids of all jobs, as a program sees them that opens the database now."""
    return sorted(str(row[0]) for row in raw_sql(url, "SELECT id FROM dray_jobs"))


def integrity(path: Path) -> str:
    """Returns the result of SQLite's integrity check."""
    return raw_sql(str(path), "PRAGMA integrity_check")[0][0]


# In the process


def tell(value: Any) -> None:
    # One write, so that the lines of a parent and its children do not mix.
    os.write(1, json.dumps(value).encode() + b"\n")


def hear() -> Any:
    line = b""
    while not line.endswith(b"\n"):
        # Byte by byte: input that is read ahead would be missing in a forked child.
        byte = os.read(0, 1)
        if not byte:
            sys.exit("the test is gone")
        line += byte
    return json.loads(line)


def is_ready() -> None:
    """Waits for the other processes."""
    tell("ready")
    hear()


def new_job(**options: Any) -> NewJob:
    return NewJob(id=_ids.new(), task="task", **options)


def enqueue(backend: Backend, **options: Any) -> str:
    return backend.jobs.enqueue([new_job(**options)])[0].id


def error_of(work: Callable[[], Any]) -> list[str]:
    """Returns the name and text of the Dray error that `work` raises; any other error is raised."""
    try:
        answer = work()
    except DrayError as error:
        return [type(error).__name__, str(error)]
    raise AssertionError(f"no error, but {answer!r}")


def in_child(work: Callable[[], Any]) -> Any:
    """Runs `work` in a forked child, which ends without any cleanup, and returns its value."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        _answer_and_exit(work, write)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        found = answers.read()
    os.waitpid(pid, 0)
    return json.loads(found)


def _answer_and_exit(work: Callable[[], Any], write: int) -> None:
    answer: Any = "nothing: work did not return"
    try:
        answer = work()
    except BaseException as error:  # noqa: BLE001 - any error is reported to the parent
        answer = [type(error).__name__, str(error)]
    finally:
        os.write(write, json.dumps(answer).encode())
        os._exit(0)


def drop_privileges() -> None:
    """Becomes an unprivileged user. Lazy imports come first: they may be in a folder only root can read."""
    migrate.latest("sqlite")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


# Bodies that open and migrate


def enqueue_some(url: str, count: int) -> list[str]:
    """Opens the database together with others and enqueues."""
    backend = open_backend(url)
    is_ready()
    made = [enqueue(backend) for _ in range(count)]
    backend.close()
    return made


def migrate_database(url: str) -> int:
    """Migrates the database together with others."""
    backend = open_backend(url)  # loads the driver first, so that all take equally long afterwards
    is_ready()
    version = backend.migrate()
    backend.close()
    return version


def migrate_and_hang(url: str) -> None:
    """Hangs in the middle of a migration, inside its transaction, until it is killed."""

    upgrade = migrate.upgrade

    def half_way(dialect: Any, tx: Any, place: str, script: Callable[[str], object]) -> int:
        def half(text: str) -> None:
            script(text[: text.index(";") + 1])
            tell("half-way")
            hear()

        return upgrade(dialect, tx, place, half)

    migrate.upgrade = half_way
    open_backend(url).migrate()


# Bodies that use files


def modes_of_a_new_database(path: str, umask: int, file_mode: int | None) -> dict[str, str]:
    """Returns the modes of all files in the folder while a new database is in use."""
    os.umask(umask)
    backend = open_backend(path) if file_mode is None else open_backend(path, file_mode=file_mode)
    enqueue(backend)
    modes = {file.name: oct(file.stat().st_mode & 0o7777) for file in Path(path).parent.iterdir()}
    backend.close()
    return modes


def error_as_nobody(path: str) -> list[str]:
    """Returns the error that an unprivileged user gets from an enqueue."""
    drop_privileges()
    backend = open_backend(path)
    return error_of(lambda: enqueue(backend))


def version_error_as_nobody(path: str) -> list[str]:
    """Returns the error that an unprivileged user gets when reading the version of the tables."""
    drop_privileges()
    return error_of(open_backend(path).schema_version)


def hold_write_lock(path: str, begin: str) -> None:
    """Holds a lock on the database until told to release it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(begin)
    tell("locked")
    hear()
    connection.execute("ROLLBACK")
    connection.close()


def fill_the_disk(folder: str) -> dict[str, Any]:
    """Enqueues on its own small disk until that is full, enlarges it, and continues.

    Runs in its own mount namespace, which ends with this process: no mount can be left behind.
    """
    _mount("tmpfs", folder, "size=1m")
    path = Path(folder) / "jobs.db"
    backend = open_backend(str(path))
    acknowledged: list[str] = []

    def until_full() -> None:
        while True:
            acknowledged.append(enqueue(backend, args=json.dumps({"text": "x" * 20_000})))

    full = error_of(until_full)
    again = error_of(until_full)
    kept = sorted(job.id for job in backend.jobs.newest(limit=1000))
    elsewhere = in_child(lambda: job_ids(str(path)))
    _mount("tmpfs", folder, "remount,size=16m")
    acknowledged += [enqueue(backend) for _ in range(10)]
    backend.close()
    return {
        "errors": [full, again],
        "kept": kept,
        "kept elsewhere": elsewhere,
        "acknowledged": acknowledged,
        "found": job_ids(str(path)),
        "integrity": integrity(path),
    }


def open_on_a_full_disk(folder: str) -> dict[str, Any]:
    """Opens a new database on a full disk, then with free space."""
    _mount("tmpfs", folder, "size=64k")
    filler = Path(folder) / "filler"
    filler.write_bytes(b"x" * 65_536)
    path = Path(folder) / "jobs.db"
    backend = open_backend(str(path))
    error = error_of(lambda: enqueue(backend))
    _mount("tmpfs", folder, "remount,size=16m")
    made = enqueue(backend)
    backend.close()
    return {"error": error, "made": [made], "found": job_ids(str(path)), "integrity": integrity(path)}


def open_beside_an_odd_mount(folder: str) -> list[str]:
    """Opens a database on a machine that has a mount whose name is not UTF-8."""
    odd = Path(folder) / os.fsdecode(b"\xff")
    odd.mkdir()
    _mount("tmpfs", str(odd), "size=64k")
    backend = open_backend(str(Path(folder) / "jobs.db"))
    made = enqueue(backend)
    backend.close()
    return [made]


def _mount(kind: str, where: str, options: str) -> None:
    subprocess.run(["mount", "-t", kind, "-o", options, kind, where], check=True, stdout=subprocess.DEVNULL)


def outgrow_the_file_limit(path: str) -> dict[str, Any]:
    """Enqueues until the file size limit is reached, then with a higher limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    backend = open_backend(path)
    acknowledged = [enqueue(backend)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))

    def until_refused() -> None:
        while True:
            acknowledged.append(enqueue(backend, args=json.dumps({"text": "x" * 20_000})))

    errors = [error_of(until_refused), error_of(until_refused)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    acknowledged += [enqueue(backend) for _ in range(10)]
    backend.close()
    return {"errors": errors, "acknowledged": acknowledged}


# Bodies that fork


def fork_and_use(url: str) -> dict[str, Any]:
    """A parent, its child and its grandchild use one backend that was opened before the forks."""
    backend = open_backend(url)
    backend.migrate()
    made = [enqueue(backend)]
    connections = [connection_of(backend)]

    def child() -> Any:
        here = [enqueue(backend)], [connection_of(backend)]
        below = in_child(lambda: ([enqueue(backend)], [connection_of(backend)]))
        again = [enqueue(backend)], [connection_of(backend)]
        seen = len(backend.jobs.newest())
        return [*here[0], *below[0], *again[0]], [*here[1], *below[1], *again[1]], seen

    made_below, connections_below, seen = in_child(child)
    made += [*made_below, enqueue(backend)]
    connections += [*connections_below, connection_of(backend)]
    backend.close()
    return {"made": made, "connections": connections, "seen": seen}


def connection_of(backend: Backend) -> list[int]:
    """Returns what identifies this process's connection: the server's pid, or our pid and the object's id."""
    if isinstance(backend.db, SqliteDatabase):
        return [os.getpid(), id(backend.db._writer)]
    from dray.backends.postgres import PostgresDatabase

    assert isinstance(backend.db, PostgresDatabase)
    found = backend.db._persist(lambda connection: connection.execute("SELECT pg_backend_pid()").fetchone())
    assert found is not None
    return [int(str(found[0]))]


def fork_many(path: str, forks: int, at_once: int) -> list[str]:
    """Forks repeatedly while parent and children write; returns the acknowledged ids."""
    backend = open_backend(path)
    acknowledged = [enqueue(backend)]
    gc.freeze()  # or a garbage collection in a child would copy the memory of this process
    for _ in range(forks // at_once):
        read, write = os.pipe()
        pids: list[int] = []
        for _ in range(at_once):
            pid = os.fork()
            if not pid:
                made = "failed"
                try:
                    made = enqueue(backend)
                finally:
                    os.write(write, f"{made}\n".encode())
                    os._exit(0)
            pids.append(pid)
        acknowledged.append(enqueue(backend))
        os.close(write)
        with os.fdopen(read) as answers:
            acknowledged += answers.read().split()
        for pid in pids:
            os.waitpid(pid, 0)
    backend.close()
    return acknowledged


def locks_after_fork(path: str) -> dict[str, list[str]]:
    """Returns which database files are locked by the parent, a child and a grandchild."""
    backend = open_backend(path)
    enqueue(backend)
    here = locked_files(path)
    below, deeper = in_child(lambda: [locked_files(path), in_child(lambda: locked_files(path))])
    used = in_child(lambda: [enqueue(backend), len(backend.jobs.newest()), locked_files(path)])[-1]
    closed = in_child(lambda: [enqueue(backend), backend.close(), locked_files(path)])[-1]
    backend.close()
    return {"parent": here, "child": below, "grandchild": deeper, "used": used, "closed": closed}


def locked_files(path: str) -> list[str]:
    """Returns the names of the database files on which this process holds a lock, according to the kernel."""
    files = {str(file.stat().st_ino): file.name for file in Path(path).parent.iterdir()}
    held: set[str] = set()
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        # 1: POSIX ADVISORY READ 4711 fe:00:1234 128 128
        fields = line.split()
        if "POSIX" in fields and "->" not in fields and fields[4] == str(os.getpid()):
            held.add(files.get(fields[5].rpartition(":")[2], "another"))
    return sorted(held)


def leave_a_child_behind(path: str, generations: Sequence[str], exits: str) -> None:
    """Enqueues, forks and ends. The last child continues, enqueues when told to, and ends by `exits`.

    An "idle" generation does not touch the backend, like the middle process when a daemon starts.
    """
    backend = open_backend(path)
    tell(enqueue(backend))
    for generation in generations:
        pid, wrote = _fork_with_pipe()
        if pid:
            # The process ends normally, with an open connection that seems to be the last one.
            os.read(wrote, 1)
            sys.exit()
        if generation == "busy":
            tell(enqueue(backend))
        os.write(wrote, b".")
    hear()
    tell(enqueue(backend))
    hear()
    tell(sorted(job.id for job in backend.jobs.newest()))
    if exits == "_exit":
        os._exit(0)
    sys.exit()


def _fork_with_pipe() -> tuple[int, int]:
    """Returns the child's pid and the read end of a pipe; in the child 0 and the write end."""
    read, write = os.pipe()
    pid = os.fork()
    os.close(write if pid else read)
    return pid, read if pid else write


def exit_of_a_child(url: str) -> dict[str, Any]:
    """Children exit normally, with all cleanup; the parent keeps using its connection."""
    backend = open_backend(url)
    backend.migrate()
    made = [enqueue(backend)]
    before = connection_of(backend)
    codes: list[int] = []
    for uses_it in (True, False, True):
        pid, wrote = _fork_with_pipe()
        if not pid:
            os.write(wrote, enqueue(backend).encode() if uses_it else b"-")
            sys.exit(7)
        made.append(os.read(wrote, 100).decode())
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        made.append(enqueue(backend))
    after = connection_of(backend)
    backend.close()
    return {"made": [m for m in made if m != "-"], "codes": codes, "before": before, "after": after}


def fork_inside_a_write(url: str, leaves: str) -> dict[str, Any]:
    """Forks in the middle of a transaction; the child leaves the block as `leaves` says."""
    backend = open_backend(url)
    backend.migrate()
    enqueue(backend)
    inside = new_job()
    early: list[str] = []
    read, write = os.pipe()

    def work(tx: Any) -> int:
        jobs.insert(tx, [inside])
        pid = os.fork()
        if not pid and leaves == "by using the backend":
            _answer_and_exit(lambda: error_of(lambda: enqueue(backend)), write)
        if not pid and leaves == "by an exception":
            raise ValueError("the child's own")
        if pid:
            # The parent commits only after the child has done its worst.
            os.waitpid(pid, 0)
            early.extend({inside.id}.intersection(job_ids(url)))
        return pid

    parent = os.getpid()
    try:
        backend.db.write(work)
    except Exception as error:
        if os.getpid() == parent:
            raise
        told = [type(error).__name__, str(error)]
        _answer_and_exit(lambda: told, write)
    if os.getpid() != parent:
        _answer_and_exit(lambda: ["none", "the child committed its parent's transaction"], write)
    os.close(write)
    with os.fdopen(read) as answers:
        child = json.loads(answers.read())
    after = enqueue(backend)
    backend.close()
    return {"child": child, "early": early, "made": [inside.id, after]}


def fork_at_each_call(url: str) -> dict[str, Any]:
    """Enqueues job after job, and forks at another call in Dray or the driver each time, as the handler of a signal
    may. The child goes on where the parent does."""
    app = App(url)
    app.enqueue("first")
    writer = getattr(core_of(app).backend.db, "_writer", None)
    parent, forked, used = os.getpid(), False, list[str]()
    seen: set[tuple[CodeType, CodeType, int]] = set()  # what was called, and from where
    told: list[list[Any]] = []

    def fork_at_another(frame: FrameType, event: str, _: object) -> None:
        nonlocal forked
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if forked or event != "call" or package not in {"dray", "psycopg"} or frame.f_back is None:
            return
        call = frame.f_code, frame.f_back.f_code, frame.f_back.f_lineno
        if call not in seen:
            seen.add(call)
            forked = True
            if not os.fork() and writer is not None:
                writer.set_trace_callback(used.append)

    names = {"first"}
    for number in itertools.count(1):
        forked = False
        names.add(f"n{number}")
        read, write = os.pipe()
        said = "fine"
        sys.setprofile(fork_at_another)
        try:
            app.enqueue(f"n{number}")
        except Exception as error:  # noqa: BLE001 - it is told to the test
            said = f"{type(error).__name__}: {error}"
        finally:
            sys.setprofile(None)
        if os.getpid() != parent:
            _answer_and_exit(lambda said=said: [said, used], write)
        os.close(write)
        with os.fdopen(read) as answers:
            if not forked:
                break
            told.append([said, *json.loads(answers.read())])
        os.wait()
    tasks = {job.task for job in app.jobs(limit=1_000)}  # a child that was forked before its job has another id
    app.close()
    return {"told": told, "lost": sorted(names - tasks)}


def fork_inside_a_read(url: str) -> dict[str, Any]:
    """Forks while this thread reads; the child then uses the backend."""
    backend = open_backend(url)
    backend.migrate()
    first = enqueue(backend)
    answer: list[Any] = []
    began = time.monotonic()

    def work(tx: Any) -> list[str]:
        before = [row[0] for row in tx.rows("job_find", ids=[first])]
        answer.append(in_child(lambda: error_of(lambda: enqueue(backend))))
        return [*before, *(row[0] for row in tx.rows("job_find", ids=[first]))]

    seen = backend.db.read(work)
    waited = time.monotonic() - began
    after = enqueue(backend)
    backend.close()
    return {"child": answer[0], "seen": seen, "waited": waited, "made": [first, after]}


def fork_beside_threads(url: str, kind: str, forks: int) -> dict[str, Any]:
    """Forks while other threads write or read without a pause; returns what children and parent enqueued."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns about fork with threads
    backend = open_backend(url)
    backend.migrate()
    made = [enqueue(backend)]
    stop = threading.Event()
    problems: list[str] = []

    def work() -> None:
        try:
            while not stop.is_set():
                if kind == "write":
                    made.append(enqueue(backend))
                else:
                    backend.jobs.get(made[:1])
        except Exception as error:  # noqa: BLE001 - reported to the test
            problems.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = [in_child(lambda: [enqueue(backend)]) for _ in range(forks)]
    stop.set()
    for thread in threads:
        thread.join()
    backend.close()
    return {"children": children, "made": made, "problems": problems}


_shared: list[Backend] = []


def enqueue_in_a_pool(url: str) -> list[str]:
    """Forks a pool of processes that use their parent's backend, as a web server does."""
    backend = open_backend(url)
    backend.migrate()
    _shared.append(backend)
    made = [enqueue(backend)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        made += pool.map(_enqueue_shared, range(30))
        pool.close()
        pool.join()
    made.append(enqueue(backend))
    backend.close()
    return made


def _enqueue_shared(_: int) -> str:
    return enqueue(_shared[0])


# Bodies that compete


def work_off(url: str, batch: int) -> list[list[list[Any]]]:
    """Claims and settles together with others until nothing is left; returns [id, attempt, claim] of every claim."""
    backend = open_backend(url)
    worker = register(backend)
    is_ready()
    claims = drain(backend, worker, batch)
    backend.close()
    return claims


def register(backend: Backend) -> str:
    worker = NewWorker(id=_ids.new(), name="w", host="here", pid=os.getpid(), boot=SystemClock().boot)
    backend.workers.register(worker, 60_000_000)
    return worker.id


def drain(backend: Backend, worker: str, batch: int) -> list[list[list[Any]]]:
    """Works until no job is ready; each round settles the last claims and claims the next."""
    clock = SystemClock()
    demand = Demand(("default",), ("task",), batch)
    rounds: list[list[list[Any]]] = []
    held: list[Claim] = []
    while True:
        done = [completed(claim, clock.steady(), clock.steady()) for claim in held]
        settled, _, claims, *_ = backend.work.exchange(worker, done, demand)
        assert not any(settled._replace(locked=[])), settled
        # A row that another claim is looking at is locked, not lost: the next batch settles it.
        held = [*(claim for claim in held if claim.id in settled.locked), *claims]
        if not held:
            return rounds
        if claims:
            rounds.append([[claim.id, claim.attempt, claim.claim] for claim in claims])


def run(bodies: dict[str, Any]) -> None:
    """Runs the requested body of a module and reports its return value."""
    tell(bodies[sys.argv[1]](*json.loads(sys.argv[2])))


if __name__ == "__main__":
    run(globals())
