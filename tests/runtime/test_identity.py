"""A worker that was declared dead comes back under one new id."""

from __future__ import annotations

import pytest

from dray.app import App
from tests.runtime.watching import LONG, sql, until


def test_a_beat_that_was_on_its_way_under_the_old_id_does_not_kill_the_new_one(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine gets a new id while the heartbeat still asks for the old one, which it learns is dead."""

    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    worker = app.worker(concurrency=1, lease=60)
    with worker:
        old_id, heartbeat, renew = worker.id, worker._heartbeat, worker._identity.renew

        def renew_while_a_beat_is_on_its_way() -> None:
            renew()
            heartbeat.tick()

        worker._identity.renew = renew_while_a_beat_is_on_its_way  # type: ignore[method-assign]
        sql(app, "UPDATE dray_workers SET state = 'dead', stopped_at = started_at")
        heartbeat.wake()
        new_id = until(lambda: worker.id != old_id and worker.id)
        assert double.enqueue(n=2).result(timeout=LONG) == 4
        assert worker.id == new_id
        assert [each.id for each in app.workers() if each.state == "active"] == [new_id]
    assert [record.message for record in caplog.records if old_id[-8:] in record.message] == [
        f"worker {old_id[-8:]} was declared dead; coming back under a new id"
    ]
