"""Tasks under limits, whose bodies keep the ledger: when each began and ended, by one clock for all processes.

`DRAY_TEST_WEAKENED` takes a part of a claim under limits away: the control of a test that has to see it missing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import dray
from dray.app_interface import core_of
from dray.backends.database import Later
from dray.backends.postgres.session import PostgresSession
from dray.backends.store.gate import Gate
from dray.runtime.engine import Engine
from tests.processes import ledger
from tests.stale_gate import STALE

NAME = "tests.processes.apps_gated"
WEAKENED = "DRAY_TEST_WEAKENED"
MANY = 1_000

app = dray.App()


class Again(Exception):
    """The body is to be tried again."""


def _nap(label: str, key: str, seconds: float, fails: int, attempt: int) -> None:
    ledger.write("start", label, attempt, key)
    how = "stop"
    try:
        time.sleep(seconds)
        if attempt <= fails:
            raise Again
        how = "end"
    finally:
        ledger.write(how, label, attempt, key)


@app.task(key="key", key_limit=1, max_attempts=MANY, max_crashes=MANY, retry=0.02)
def alone(label: str, key: str, seconds: float, fails: int, ctx: dray.Context) -> None:
    """One at a time for each key."""
    _nap(label, key, seconds, fails, ctx.attempt)


@app.task(limit=4, max_attempts=MANY, max_crashes=MANY, retry=0.02)
def four(label: str, seconds: float, fails: int, ctx: dray.Context) -> None:
    """Four at a time."""
    _nap(label, "", seconds, fails, ctx.attempt)


@app.task(queue="single", limit=3, max_attempts=MANY, max_crashes=MANY, retry=0.02)
def single(label: str, seconds: float, fails: int, ctx: dray.Context) -> None:
    """Three at a time, and nothing else in its queue: where one ends, the next takes its place."""
    _nap(label, "single", seconds, fails, ctx.attempt)


@app.task(queue="api", limit=2, max_attempts=MANY, max_crashes=MANY, retry=0.02)
def call(label: str, seconds: float, fails: int, ctx: dray.Context) -> None:
    """Two at a time, and no more than three together with `ping`."""
    _note_claim("claimed", label, ctx)
    _nap(label, "call", seconds, fails, ctx.attempt)


@app.task(queue="api", max_attempts=MANY, max_crashes=MANY, retry=0.02)
def ping(label: str, seconds: float, fails: int, ctx: dray.Context) -> None:
    _note_claim("claimed", label, ctx)
    _nap(label, "ping", seconds, fails, ctx.attempt)


@app.task(key="key", key_limit=1, limit=1)
def until_there(label: str, key: str, path: str, ctx: dray.Context) -> None:
    """One at a time, until a file is there; a second attempt does not wait."""
    ledger.write("start", label, ctx.attempt, key)
    while ctx.attempt == 1 and not Path(path).exists():
        time.sleep(0.005)
    ledger.write("end", label, ctx.attempt, key)


def _note_claim(what: str, label: str, ctx: dray.Context) -> None:
    """When the job was claimed, by the database's clock: a row of a job that runs says so."""
    (found,) = core_of(app).backend.jobs.get([ctx.job_id])
    ledger.write(what, label, ctx.attempt, found.started_at)


@app.task(rate="40/s")
def paced(label: str, ctx: dray.Context) -> None:
    _note_claim("start", label, ctx)


@app.task(rate="2/4s", max_attempts=MANY, max_crashes=MANY)
def slowly(label: str, ctx: dray.Context) -> None:
    _note_claim("start", label, ctx)


@app.task(key="tenant")
def tenanted(label: str, tenant: str, seconds: float, ctx: dray.Context) -> None:
    """No limit: tenants only take turns."""
    _nap(label, tenant, seconds, 0, ctx.attempt)


def _lock_nothing(_: PostgresSession, names: Any) -> Later[set[str]]:
    return lambda: set(names)


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_WAYS: dict[str, tuple[type, dict[str, Any]]] = {
    "": (object, {}),
    "no lock": (PostgresSession, {"lock_limits": _lock_nothing}),
    "stale count": (Gate, STALE),
    "dies when it has claimed": (Engine, {"_dispatch": _die}),
}

_owner, _instead = _WAYS[os.environ.get(WEAKENED, "")]
for _name, _method in _instead.items():
    setattr(_owner, _name, _method)
