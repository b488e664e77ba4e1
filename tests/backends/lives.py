"""Workers in their own processes that hold a proof of life and follow the test's commands until they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from dray.backends import Backend, open_backend
from dray.backends.database import Proof
from dray.clock import Ids, SystemClock
from dray.model.job import Demand
from dray.model.worker import NewWorker
from tests import verbs
from tests.backends.processes import PATIENCE, drop_privileges, hear, run, tell

LEASE_US = 60_000_000


def live(url: str, lease_us: int = LEASE_US, claims: int = 0) -> None:
    """A worker: takes its proof of life, registers and claims, then follows commands. It never ends by itself."""
    backend = open_backend(url)
    watch = backend.watch()
    worker_id = Ids(SystemClock()).new()
    proof = backend.proofs.prove(worker_id, watch)
    register(backend, worker_id, proof, lease_us)
    if claims:
        verbs.claim(backend, worker_id, Demand(("default",), ("task",), claims))
    tell({"id": worker_id, "lock": proof.lock, "is_held": proof.is_held})
    orders: dict[str, Callable[[], Any]] = {
        "check": lambda: [proof.check(), proof.is_held],
        "beat": lambda: backend.workers.beat(worker_id, lease_us).alive,
        "fork": fork,
        "fork_with_the_proof": lambda: fork_with(proof),
        "spawn": lambda: spawn(()),
        "spawn_with_the_proof": lambda: spawn((proof.fileno() or 0,)),
        "close": proof.close,
        "child_closes": lambda: child_closes(proof),
    }
    while True:
        tell(orders[hear()]())


def until(condition: Callable[[], bool]) -> None:
    """Polls for something that the kernel or a server does asynchronously."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def register(backend: Backend, worker_id: str, proof: Proof, lease_us: int) -> None:
    worker = NewWorker(id=worker_id, name="w", host="here", pid=os.getpid(), boot=SystemClock().boot, lock=proof.lock)
    backend.workers.register(worker, lease_us)


def fork() -> int:
    """Forks a child that survives when its parent is killed."""
    pid = os.fork()
    if not pid:
        signal.pause()
    return pid


def fork_with(proof: Proof) -> int:
    descriptor = proof.fileno()
    assert descriptor is not None
    copy = os.dup(descriptor)
    pid = fork()
    os.close(copy)
    return pid


def spawn(descriptors: tuple[int, ...]) -> int:
    """Starts another program, which inherits these descriptors."""
    command = [sys.executable, "-S", "-E", "-c", "import signal; signal.pause()"]
    return subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


def child_closes(proof: Proof) -> int:
    """Forks a child that closes the proof as if it were its own."""
    pid = os.fork()
    if not pid:
        assert not proof.is_held
        assert not proof.check()
        proof.close()
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def judge_as_nobody(path: str) -> list[Any]:
    """Judges, as an unprivileged user, a worker whose lock file is free but not readable for that user."""
    assert SystemClock().boot  # loads modules that may be in a folder only root can read
    drop_privileges()
    backend = open_backend(f"sqlite:///{path}")
    with closing(backend.watch()) as watch:
        worker_id = Ids(SystemClock()).new()
        proof = backend.proofs.prove(worker_id, watch)
        register(backend, worker_id, proof, LEASE_US)
        descriptor = proof.fileno()
        assert descriptor is not None
        os.fchmod(descriptor, 0)
        os.close(descriptor)  # as the end of the process would
        judgement = backend.workers.judge()
        return [backend.proofs.suspects(), judgement.dead, judgement.overdue]


if __name__ == "__main__":
    run(globals())
