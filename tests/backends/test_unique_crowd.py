"""64 producers, one unique key, transactions that roll back, and a worker that fails in every possible way."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dray.instants import SECOND
from dray.model import settlement as model
from dray.model.job import Claim, Enqueued, Outcome
from dray.model.settlement import Settlement
from tests import verbs
from tests.backends import beside
from tests.backends.world import World

THREADS, ROUNDS = 64, 3
ANSWERS = ("keep", "keep", "replace", "reschedule")
LIVE = "SELECT count(*) FROM dray_jobs WHERE unique_key = 'k' AND finished_at IS NULL"


@contextmanager
def meanwhile(*steps: Callable[[], None]) -> Generator[None]:
    """Repeats each step in its own thread until the block ends; re-raises their errors."""
    is_over = threading.Event()

    def go_on(step: Callable[[], None]) -> None:
        while not is_over.is_set():
            step()

    with ThreadPoolExecutor(len(steps)) as pool:
        under_way = [pool.submit(go_on, step) for step in steps]
        try:
            yield
        finally:
            is_over.set()
        for each in under_way:
            each.result()


class Worker:
    """Claims the job if there is one, and ends the attempt in one of all possible ways."""

    def __init__(self, world: World) -> None:
        self.world, self.id = world, world.worker()
        self.rng = random.Random(11)
        self.ends = 0

    def step(self) -> None:
        for claim in self.world.claim(self.id):
            way, now = self.rng.randrange(6), self.world.clock.steady()
            if way == 0:  # a retry, promoted once its time has come
                self.settle(model.errored(claim, now, now, Outcome.ERROR, SECOND, "ValueError", "no", None))
                self.world.clock.advance(SECOND)
                self.world.backend.jobs.promote()
            elif way == 1:
                self.settle(model.snoozed(claim, now, now, 0))
            elif way == 2:
                self.settle(model.released(claim, now))
            elif way == 3:
                self.die(claim)
            else:
                self.settle(model.completed(claim, now, now))
                self.ends += 1

    def settle(self, settlement: Settlement) -> None:
        while verbs.settle(self.world.backend, self.id, [settlement]).locked:
            pass  # locked by a producer with an uncommitted replace

    def die(self, claim: Claim) -> None:
        self.world.bury(self.id)
        while self.world.job(claim.id).state == "running":
            self.world.backend.workers.rescue([], rng=self.world.rng)
        self.id = self.world.worker()


def test_of_64_that_enqueue_under_one_key_one_job_at_most_is_live_at_any_moment(world: World, url: str) -> None:
    world.enqueue("other")  # creates the queue: with an uncommitted new one they would wait for each other
    worker, start = Worker(world), threading.Barrier(THREADS)
    seen: list[int] = []

    def produce(seed: int) -> list[Enqueued]:
        rng, committed = random.Random(seed), list[Enqueued]()
        start.wait()
        with beside.connect(url) as connection:
            number = 0
            # Until the worker has ended one: otherwise no producer would have requested the key of an ended job.
            while number < ROUNDS or not worker.ends:
                number += 1
                asked = {"args": f"[{seed},{number}]", "on_conflict": rng.choice(ANSWERS)}
                new = world.new(unique_key="k", max_attempts=999, max_crashes=999, **asked)
                (answer,) = world.backend.jobs.enqueue([new], connection=connection)
                if rng.random() < 0.3:
                    connection.rollback()
                else:
                    connection.commit()
                    committed.append(answer)
        return committed

    with (
        beside.connect(url, autocommit=True) as look,
        meanwhile(worker.step, lambda: seen.append(beside.execute(look, LIVE)[0][0])),
        ThreadPoolExecutor(THREADS) as pool,
    ):
        answers = [answer for produced in pool.map(produce, range(THREADS)) for answer in produced]

    last = world.enqueue(unique_key="k")

    assert set(seen) <= {0, 1}
    assert beside.rows(url, LIVE) == [(1,)]
    written = {answer.id for answer in answers if not answer.duplicate} | {last}
    stored = {str(row[0]) for row in beside.rows(url, "SELECT id FROM dray_jobs WHERE unique_key = 'k'")}
    assert stored == written  # no rolled back job was reported, and none was lost
    assert {answer.id for answer in answers} <= stored
    assert len(stored) == worker.ends + 1 > 1  # each job except the live one ended once
