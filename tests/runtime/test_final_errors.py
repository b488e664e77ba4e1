"""`ctx.is_final(error)`: whether the job fails for good, asked before its outcome is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dray
from dray.app import App
from dray.testing import context


class Bounced(Exception):
    pass


def test_middleware_knows_which_errors_are_final_as_they_turn_out(app: App) -> None:
    said: list[tuple[str, str, int, bool]] = []

    @app.middleware
    def ask(ctx: dray.Context, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            said.append((ctx.queue, type(error).__name__, ctx.attempt, ctx.is_final(error)))
            raise

    @app.task(name="fail", queue="mail", max_attempts=2, retry=0, fail_on=Bounced)
    def fail(kind: str) -> None:
        raise {"error": ValueError, "bounced": Bounced, "fail": dray.Fail, "cancel": dray.Cancel}[kind](kind)

    @app.task(name="sell", max_attempts=1)
    def sell(ctx: dray.Context) -> None:
        with ctx.transaction():
            pass
        raise ValueError("after the completion")

    for kind in ("error", "bounced", "fail", "cancel"):
        fail.enqueue(kind)
        app.worker(concurrency=1).run_until_idle()
    job = sell.enqueue()
    app.worker().run_until_idle()

    assert said == [
        ("mail", "ValueError", 1, False),
        ("mail", "ValueError", 2, True),
        ("mail", "Bounced", 1, True),
        ("mail", "Fail", 1, True),
        ("mail", "Cancel", 1, False),
        ("default", "ValueError", 1, False),
    ]
    assert job.wait() == "completed"


def test_a_plain_call_knows_by_its_attempts() -> None:
    assert not context(attempt=1).is_final(ValueError())
    assert context(attempt=3).is_final(ValueError())
    assert context(attempt=1).is_final(dray.Fail("no"))
    assert not context(attempt=3).is_final(dray.Cancel("no"))
    assert context().queue == "default"
