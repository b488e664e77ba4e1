"""Jobs that end in every way there is: the app of workers, and ``python -m tests.cli.churn STEPS``, who gives them
work: enqueues, cancels, starts over and clears away whatever there is, in any order."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import dray
from dray.app_interface import core_of
from dray.handle import job as handles

app = dray.App()
log = logging.getLogger("churn")


@app.task(name="churn", max_attempts=3, retry=0.05)
def churn(number: int, ctx: dray.Context) -> str:
    log.info("number %d", number)
    time.sleep(number % 5 / 500)
    if number % 7 == 0:
        raise ValueError(number)
    if number % 11 == 0 and ctx.attempt == 1:
        raise dray.Retry(delay=0.01)
    if number % 13 == 0 and time.time_ns() % 2:
        raise dray.Snooze(0.02)
    if number % 17 == 0:
        raise dray.Cancel("not needed")
    return "x" * (number % 3 * 1000)


@app.task(name="keep_nothing", keep_args=False)
async def keep_nothing(text: str) -> int:
    return len(text)


class Churner:
    def __init__(self) -> None:
        self._rng = random.Random(5)
        self._ids: list[str] = []

    def step(self) -> None:
        self._rng.choice(ACTIONS)(self)

    def enqueue(self) -> None:
        self._ids += [churn.enqueue(self._number()).id for _ in range(5)]

    def enqueue_large(self) -> None:
        self._ids.append(keep_nothing.enqueue("x" * 3000).id)

    def enqueue_unique(self) -> None:
        rng = self._rng
        options: dict[str, Any] = {"unique": f"key {rng.randrange(3)}", "max_attempts": rng.randrange(1, 4)}
        if rng.random() < 0.5:
            options |= {"on_conflict": rng.choice(["replace", "reschedule"]), "unique_scope": "queued"}
        elif rng.random() < 0.5:
            options |= {"unique_for": rng.choice([0.01, 5])}
        self._ids.append(churn.using(**options).enqueue(self._number()).id)

    def enqueue_to_expire(self) -> None:
        churn.using(expires_in=0.005).enqueue(1)

    def enqueue_workflow(self) -> None:
        rng, flow = self._rng, app.workflow("churn")
        steps = [flow.add(churn, self._number())]
        for _ in range(6):
            policy: Any = rng.choice(["cancel", "run", "hold"])
            after = rng.sample(steps, min(2, len(steps)))
            steps.append(flow.add(churn, self._number(), after=after, on_parent_failure=policy))
        self._ids += [job.id for job in flow.enqueue().jobs()]

    def cancel(self) -> None:
        handles.cancel(core_of(app), self._some())

    def retry(self) -> None:
        handles.retry(core_of(app), self._some())

    def prune(self) -> None:
        app.prune(older_than=1)

    def _number(self) -> int:
        return self._rng.randrange(1000)

    def _some(self) -> list[str]:
        return self._rng.sample(self._ids, min(5, len(self._ids)))


ACTIONS: tuple[Callable[[Churner], None], ...] = (
    Churner.enqueue,
    Churner.enqueue,
    Churner.enqueue_large,
    Churner.enqueue_unique,
    Churner.enqueue_to_expire,
    Churner.enqueue_workflow,
    Churner.cancel,
    Churner.retry,
    Churner.prune,
)


def main() -> None:
    churner = Churner()
    for _ in range(int(sys.argv[1])):
        churner.step()
    app.close()


if __name__ == "__main__":
    main()
