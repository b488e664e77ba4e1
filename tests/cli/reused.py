"""A process that runs one command after another.

A process of its own costs a command 12 ms, more than most commands take: what it touches of the memory that it shares
with the server of forks is copied. Each command gets its own folder, environment and streams, loads the code in its
folder again, and finds logging, signals and warnings as in a new process. A process in which a command left anything
else behind (a thread, a child, a descriptor, an exit handler) runs no other. Connections to a schema that tests share
are kept for the next command there: a new one costs the server 6 ms.
"""

from __future__ import annotations

import atexit
import importlib
import linecache
import logging
import os
import select
import signal
import site
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path

from dray.backends.postgres import PostgresDatabase
from dray.backends.postgres.connect import Connector, OwnConnection
from dray.backends.sqlite import files, inspect
from dray.cli import main
from tests.forks import Forked, become, pipe

# These run bodies of tasks, threads and processes, or until they are told to stop.
ALONE = {"worker", "dev", "demo", "bench", "run", "web", "top", "tail", "--watch"}
_MOST = 50  # commands of one process, so that a failure depends on few that ran before it
_SHARED_SCHEMA = "_again_"  # in the name of each that `tests.schemas` makes
_ROOT = Path(__file__).parents[2]
_LIBRARIES = (sys.prefix, sys.base_prefix, *site.getsitepackages(), str(_ROOT / "src"), str(_ROOT / "tests"))


def is_possible(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command ends by itself and leaves a process as it was. Completing a word ends the process."""
    return not ALONE.intersection(words) and "_DRAY_COMPLETE" not in environment


class Command:
    """A command that runs in an idle process, or in a new one; its streams are these descriptors."""

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        self.process = _idle.pop() if _idle else _Process()
        self.process.connection.send((list(words), folder, dict(environment)))
        for each in streams:
            reduction.send_handle(self.process.connection, each, self.process.forked.pid)

    def wait(self, timeout: float) -> int:
        """Waits for its end and returns its code."""
        forked, connection = self.process.forked, self.process.connection
        if not connection.poll(timeout):
            forked.kill()
            connection.close()
            raise subprocess.TimeoutExpired("dray", timeout)
        try:
            code, is_as_before = connection.recv()
        except (EOFError, ConnectionResetError):  # it has ended the process
            connection.close()
            return forked.wait(timeout)
        if is_as_before:
            _idle.append(self.process)
        else:
            connection.close()
        return code


class _Process:
    def __init__(self) -> None:
        self.connection, theirs = pipe()
        self.forked = Forked(_serve, (theirs,))
        theirs.close()


_idle: list[_Process] = []


@atexit.register
def end_all() -> None:
    for each in _idle:
        each.connection.close()


# In the process


def _serve(connection: Connection) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    warm = WarmConnections()
    state = State(warm)
    for number in range(_MOST):
        try:
            words, folder, environment = connection.recv()
        except EOFError:
            return
        streams = [reduction.recv_handle(connection) for _ in range(3)]
        become(environment, folder, streams)
        for descriptor in streams:
            os.close(descriptor)
        code = run_here(words)
        for standard in range(3):  # the reader of a terminal waits for this
            os.dup2(nowhere, standard)
        connection.send((code, state.restore() and number + 1 < _MOST))


def run_here(words: Sequence[str]) -> int:
    """Runs a command in this process, which has become what it needs; returns its code."""
    sys.orig_argv[:] = [sys.executable, "-m", "dray", *words]
    code = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # as Python does by itself
        try:
            main(words)
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
        except BaseException:  # noqa: BLE001 - what the interpreter does
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return code


class WarmConnections:
    """Connections to PostgreSQL that commands have left to later ones in the same shared schema."""

    _MOST = 4

    def __init__(self) -> None:
        self._idle: list[tuple[Connector, OwnConnection]] = []  # used last, comes last
        connect, close = Connector.connect, PostgresDatabase.close

        def connect_or_take(connector: Connector) -> OwnConnection:
            return self._take(connector) or connect(connector)

        def keep_and_close(database: PostgresDatabase) -> None:
            database._notifier.flush()  # it sends on one of them
            if _SHARED_SCHEMA in database._pool.place:
                self._keep(database)
            close(database)

        for owner, name, method in (
            (Connector, "connect", connect_or_take),
            (PostgresDatabase, "close", keep_and_close),
        ):
            setattr(owner, name, method)

    @property
    def descriptors(self) -> list[int]:
        return [connection.fileno() for _, connection in self._idle if not connection.closed]

    def _take(self, connector: Connector) -> OwnConnection | None:
        for place in reversed(range(len(self._idle))):
            kept, connection = self._idle[place]
            if (kept._place, kept._patience) == (connector._place, connector._patience):
                del self._idle[place]
                if _is_as_new(connection):
                    return connection
                connection.close()
        return None

    def _keep(self, database: PostgresDatabase) -> None:
        pool = database._pool
        with pool.lock:
            self._idle += [(pool.connector, each) for each in pool.idle if _is_as_new(each)]
            pool.idle[:] = [each for each in pool.idle if not _is_as_new(each)]
        while len(self._idle) > self._MOST:
            self._idle.pop(0)[1].close()


def _is_as_new(connection: OwnConnection) -> bool:
    """Not closed, by the server neither (it would have said so), and it still prepares its statements."""
    return not (connection.closed or select.select([connection], [], [], 0)[0]) and bool(connection.prepare_threshold)


class State:
    """What a command finds in a new process."""

    def __init__(self, warm: WarmConnections | None = None) -> None:
        self._warm = warm
        weakref.finalize(self, int)  # the first one of a process registers an exit handler
        self._modules = set(sys.modules)
        self._path = [*sys.path]
        self._handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
        self._loggers = {each: (each.level, [*each.handlers], each.propagate, each.disabled) for each in _loggers()}
        self._threads = threading.enumerate()
        self._exits = _exit_handlers()
        self._descriptors = _descriptors()

    def restore(self) -> bool:
        """False: a command has left something that stays until its process ends."""
        for name in set(sys.modules) - self._modules:
            if not (getattr(sys.modules[name], "__file__", None) or "").startswith(_LIBRARIES):
                del sys.modules[name]
        sys.path[:] = self._path
        importlib.invalidate_caches()
        linecache.clearcache()
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        logging.disable(logging.NOTSET)
        for logger in _loggers():
            level, handlers, logger.propagate, logger.disabled = self._loggers.get(logger, (0, [], True, False))
            logger.handlers[:] = handlers
            logger.setLevel(level)
        files._doubted.clear()  # what is said once in a process
        while inspect._headers:  # they stay open, for connections that other commands would have
            os.close(inspect._headers.popitem()[1])
        return (
            threading.enumerate() == self._threads
            and _exit_handlers() == self._exits
            and _descriptors() - self._kept() == self._descriptors
            and not _has_children()
        )

    def _kept(self) -> set[int]:
        return set() if self._warm is None else set(self._warm.descriptors)


def _descriptors() -> set[int]:
    """Those that are open; not the one by which they are listed."""
    folder = Path("/proc/self/fd")
    return {int(each.name) for each in [*folder.iterdir()] if each.is_symlink()}


def _exit_handlers() -> int:
    return getattr(atexit, "_ncallbacks")()  # noqa: B009 - it has no type


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(each for each in known if isinstance(each, logging.Logger))]


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
