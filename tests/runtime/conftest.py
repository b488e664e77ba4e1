"""An App on each database in turn, with the real clock, that leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from dray.app import App
from dray.instants import SECOND
from dray.runtime import stopper, worker
from dray.settings import Settings
from tests.conftest import WarmConnections
from tests.runtime import kinds
from tests.runtime.watching import until


@pytest.fixture
def app(url: str, warm: WarmConnections) -> Generator[App]:
    """An App. After the test, all threads of its workers must have ended and no proof of life may be left."""
    before = set(threading.enumerate())
    with App(url) as opened, warm.lent_to(opened.backend, url):
        yield opened
    until(lambda: not [thread for thread in threading.enumerate() if _is_ours(thread) and thread not in before])
    if url.startswith("sqlite:"):
        assert not list(Path(url.removeprefix("sqlite:///")).parent.glob("*-workers/*"))


@pytest.fixture
def kinds_app(url: str) -> Generator[App]:
    """The App of `kinds`, whose tasks child processes can import, on this test's database."""
    before = kinds.app.settings
    kinds.app.settings = replace(before, url=Settings.of(url).url)
    with kinds.app as opened:
        yield opened
    kinds.app.settings, kinds.app._opened = before, None


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("dray-")


@pytest.fixture
def quick_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up on a body that does not stop after 0.6 seconds instead of 6."""
    monkeypatch.setattr(stopper, "KILL_GRACE", SECOND // 2)
    monkeypatch.setattr(stopper, "_LAST_GRACE", SECOND // 10)
    monkeypatch.setattr(stopper, "_AGAIN", SECOND // 10)
    monkeypatch.setattr(worker, "KILL_GRACE", SECOND // 2)
