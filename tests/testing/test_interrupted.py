"""An exception at a random moment of a test (Ctrl-C, a time limit): the App is as before, nothing is left behind."""

from __future__ import annotations

import gc
import logging
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.app_interface import core_of
from dray.runtime import notes
from dray.testing import clock, crash, crashing, database, drain, inline
from tests.interrupts.harness import BySignal, ByThread, bombard
from tests.testing import shop
from tests.testing.shop import double, fetch, send

_HITS = 15


def whole_test() -> None:
    with database(shop.app), clock(shop.app) as now:
        send.using(delay=60).enqueue("ann@example.com")
        now.advance(60)
        with crash(shop.app, send):
            drain(shop.app)
        with inline(shop.app):
            double.enqueue(1)
            fetch.enqueue("example.com")


# The exception may come inside the driver, whose unfinished connections and generators end when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("way", [BySignal(), ByThread()], ids=["signal", "thread"])
def test_an_interrupted_test_leaves_nothing_behind(
    way: BySignal | ByThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAY_TEST_URL", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = core_of(shop.app).settings, core_of(shop.app).clock, core_of(shop.app).ids

    def check() -> None:
        gc.collect()
        assert (core_of(shop.app).settings, core_of(shop.app).clock, core_of(shop.app).ids) == before
        assert "submit" not in vars(shop.app)
        assert crashing._armed == []
        assert list(tmp_path.iterdir()) == []
        assert notes._handler not in logging.getLogger().handlers
        assert not [each for each in threading.enumerate() if each.name == "dray-loop" and not _ends(each)]

    def make_call() -> Callable[[], object]:
        return whole_test

    bombard(way, make_call, check, _HITS, random.Random(5))
    whole_test()


def _ends(thread: threading.Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()
