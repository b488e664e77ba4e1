"""How durable a worker's writes are: as its App says, and each outcome is on disk by the next beat."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.app import App
from dray.errors import StorageUnavailable
from dray.settings import Durability
from tests.runtime.watching import LONG, until


class Writes:
    """Records how durable each call of a verb was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.durable: list[bool] = []
        self.fails = False
        self._patch = monkeypatch

    def note(self, noun: Any, verb: str) -> None:
        """Starts to record a verb. While `fails` is set, its durable calls fail."""
        call = getattr(noun, verb)

        def noting(*args: Any, durable: bool, **options: Any) -> Any:
            self.durable.append(durable)
            if self.fails and durable:
                raise StorageUnavailable("not now")
            return call(*args, durable=durable, **options)

        self._patch.setattr(noun, verb, noting)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


@pytest.mark.parametrize(("durability", "is_durable"), [("full", True), ("default", False), ("normal", False)])
@pytest.mark.parametrize("verb", ["exchange", "grow"])
def test_a_worker_writes_outcomes_as_durably_as_its_app_says(
    url: str, writes: Writes, verb: str, durability: Durability, is_durable: bool
) -> None:
    with App(url, durability=durability) as app:

        @app.task(name="leaf")
        def leaf() -> None:
            pass

        @app.task(name="grow")
        def grow(ctx: dray.Context) -> None:
            ctx.add(leaf)

        wf = app.workflow("growing")
        wf.add(grow)
        with app.worker() as worker:
            writes.note(worker._backend.work, verb)
            assert wf.enqueue().wait(LONG) == "completed"

    assert set(writes.durable) == {is_durable}


def test_the_beat_after_an_outcome_brings_it_to_the_disk_though_it_takes_two(app: App, writes: Writes) -> None:
    @app.task(name="quick")
    def quick() -> None:
        pass

    with app.worker(lease=1) as worker:
        writes.note(worker._beats.workers, "beat")
        until(lambda: writes.durable)
        assert not any(writes.durable)  # nothing has been written yet

        writes.fails = True
        quick.enqueue().result(timeout=LONG)
        until(lambda: writes.durable.count(True) >= 2)
        writes.fails = False
        until(lambda: writes.durable[-1:] == [False])

    first = writes.durable.index(True)
    assert not any(writes.durable[:first])
    assert writes.durable[first : first + 2] == [True, True]
