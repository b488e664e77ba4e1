from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dray.backends import Backend
from dray.clock import Ids
from tests.backends.world import World
from tests.manual_clock import ManualClock


@pytest.fixture
def world(backend: Backend, clock: ManualClock, ids: Ids) -> World:
    return World(backend, clock, ids)


@pytest.fixture
def told(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What other processes are told, but by enqueues: names of queues, and "done" for jobs that have ended."""
    heard: list[str] = []
    enqueue = backend.jobs.enqueue

    def announce(queues: Iterable[str]) -> None:
        heard.extend(queues)

    def enqueue_silently(*args: Any, **options: Any) -> Any:
        before = list(heard)
        written = enqueue(*args, **options)
        heard[:] = before
        return written

    monkeypatch.setattr(backend.jobs, "enqueue", enqueue_silently)
    for place in (backend, backend.db):
        monkeypatch.setattr(place, "announce", announce)
        monkeypatch.setattr(place, "announce_done", lambda: heard.append("done"))
    return heard


class Counts:
    """How often the database was asked, and written."""

    def __init__(self) -> None:
        self.reads = self.writes = 0

    def clear(self) -> None:
        self.reads = self.writes = 0


@pytest.fixture
def counts(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counted = Counts()
    read, glance, write = backend.db.read, backend.db.glance, backend.db.write

    def counting_read(*args: object, **options: object) -> object:
        counted.reads += 1
        return read(*args, **options)  # type: ignore[arg-type]

    def counting_write(*args: object, **options: object) -> object:
        counted.writes += 1
        return write(*args, **options)  # type: ignore[arg-type]

    def counting_glance(*args: object, **options: object) -> object:
        counted.reads += 1
        return glance(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.db, "read", counting_read)
    monkeypatch.setattr(backend.db, "glance", counting_glance)
    monkeypatch.setattr(backend.db, "write", counting_write)
    return counted
