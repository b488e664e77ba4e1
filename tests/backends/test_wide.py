"""Very wide graphs: what enqueueing, settling and freeing them costs."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from dray.app import App
from dray.model import settlement as model
from dray.model.job import Claim
from dray.model.limits import FANOUT_CHUNK
from dray.model.queue import Demand
from dray.model.worker import NewWorker
from dray.task import Task

WIDTH = 10_000
NOTHING = Demand((), (), 0)


class Wide:
    """A step that 10,000 wait for, and one that waits for all of them; and a worker by hand."""

    def __init__(self, app: App, task: Task[..., None]) -> None:
        self.app = app
        workflow = app.workflow("wide")
        first = workflow.add(task, step="first")
        children = [workflow.add(task.using(queue="many"), after=first) for _ in range(WIDTH)]
        workflow.add(task.using(queue="last"), after=children, step="last")
        began = time.monotonic()
        self.run = workflow.enqueue()
        self.enqueued_in = time.monotonic() - began
        self.worker = app.new_id()
        new = NewWorker(id=self.worker, name="w", host="here", pid=1, boot=app.clock.boot)
        app.backend.worker_register(new, 600_000_000)

    def claim(self, queue: str, limit: int) -> list[Claim]:
        return self.app.backend.job_claim(self.worker, Demand((queue,), ("step",), limit))

    def settle(self, claims: list[Claim]) -> tuple[float, bool]:
        """How long it took, and whether children are left that have not been told."""
        began = time.monotonic()
        now = self.app.clock.steady()
        ends = [model.completed(claim, now, now) for claim in claims]
        answer = self.app.backend.job_exchange(self.worker, ends, NOTHING)
        return time.monotonic() - began, answer.has_more_children


@pytest.fixture
def wide(url: str) -> Generator[Wide]:
    with App(url) as app:
        app.backend.migrate()

        @app.task(name="step")
        def step() -> None: ...

        yield Wide(app, step)


def test_the_settle_of_a_parent_of_10_000_is_short_and_the_last_of_them_frees_their_child(wide: Wide) -> None:
    """Aimed at: 2 s and 50 ms on a quiet machine. The bounds tell a chunk from all of them on a busy one."""
    took, has_more = wide.settle(wide.claim("default", 1))
    print(f"{WIDTH:,} steps enqueued in {wide.enqueued_in:.2f} s; their parent settled in {took * 1000:.0f} ms")
    assert wide.enqueued_in < 20
    assert took < 0.5
    assert has_more
    assert wide.run.counts == {"completed": 1, "queued": FANOUT_CHUNK, "waiting": WIDTH - FANOUT_CHUNK + 1}

    while wide.app.backend.job_fan_out().left:
        continue
    longest = 0.0
    while claims := wide.claim("many", 500):
        took, has_more = wide.settle(claims)
        longest = max(longest, took)
        while has_more:
            has_more = wide.app.backend.job_fan_out().left
    assert longest < 2
    assert wide.run.counts == {"completed": WIDTH + 1, "queued": 1}
    assert [claim.queue for claim in wide.claim("last", 5)] == ["last"]
