"""An App on each database in turn, with the real clock, that leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.instants import SECOND
from dray.runtime import stopper, worker
from dray.runtime.children.worker_side import ForkerHandle
from dray.runtime.runners import process
from dray.settings import Settings
from tests.runtime import kinds
from tests.runtime.watching import until


@pytest.fixture
def app(url: str) -> Generator[App]:
    """An App. After the test, all threads of its workers must have ended and no proof of life may be left."""
    before = set(threading.enumerate())
    with App(url) as opened:
        yield opened
    until(lambda: not [thread for thread in threading.enumerate() if _is_ours(thread) and thread not in before])
    if url.startswith("sqlite:"):
        assert not list(Path(url.removeprefix("sqlite:///")).parent.glob("*-workers/*"))


@pytest.fixture
def kinds_app(url: str) -> Generator[App]:
    """The App of `kinds`, whose tasks child processes can import, on this test's database."""
    before = core_of(kinds.app).settings
    core_of(kinds.app).settings = replace(before, url=Settings.of(url).url)
    with kinds.app as opened:
        yield opened
    core_of(kinds.app).settings, core_of(kinds.app)._opened = before, None


class _KeptForker(ForkerHandle):
    """Serves one worker after another: to start one takes 0.2 s, as long as all else that most tests do."""

    def close(self) -> None:
        """The next test uses it."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def kept_forker() -> Generator[_KeptForker]:
    kept = _KeptForker()
    with kept._lock:
        kept._running()  # before tests look which processes there are
    yield kept
    kept.end()


@pytest.fixture
def shared_forker(kept_forker: _KeptForker, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that need a child process and are not about how it is started: all use one forker."""
    monkeypatch.setattr(process, "ForkerHandle", lambda: kept_forker)


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("dray-")


@pytest.fixture
def quick_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up on a body that does not stop after 0.6 seconds instead of 6."""
    monkeypatch.setattr(stopper, "KILL_GRACE", SECOND // 2)
    monkeypatch.setattr(stopper, "_LAST_GRACE", SECOND // 10)
    monkeypatch.setattr(stopper, "_AGAIN", SECOND // 10)
    monkeypatch.setattr(worker, "KILL_GRACE", SECOND // 2)
