"""A scrape is read by Prometheus's own parser."""

from __future__ import annotations

import threading
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dray import App
from dray.app_interface import core_of
from dray.instants import MINUTE
from dray.maintenance.rollups import RollUp
from dray.model.rollup import floor
from dray.ops import prometheus
from dray.ops.exposition import METRICS
from dray.ops.prometheus import Exporter, Own
from dray.runtime.end_log import EndLog
from dray.runtime.ends_counted import EndsCounted
from dray.runtime.health import Endpoint
from dray.runtime.worker import Worker
from tests.web.hands import Hand, put_back


def families(text: str) -> dict[str, Any]:
    found = list(text_string_to_metric_families(text))
    names = [each.name for each in found]
    assert len(set(names)) == len(names)
    # The parser takes `_total` off the names of counters.
    assert {f"{each.name}_total" if each.type == "counter" else each.name for each in found} <= set(METRICS)
    return {each.name: each for each in found}


@pytest.fixture
def app(made_url: str) -> Any:
    with App(made_url) as opened:
        yield opened


def test_a_busy_database_is_parsed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_KEPT", 0.0)
    monkeypatch.setattr(prometheus, "_PATIENCE", 60.0)
    backend = core_of(app).backend
    backend.rollups.write({}, [], floor(backend.now() - 10 * MINUTE, MINUTE))
    own = Own(4, 1, is_healthy=True, is_ready=False, attempts={('a "quoted"\\ näme', "retried"): 2})
    exporter = Exporter(lambda: backend, lambda: own)
    exporter.text()
    for queue in ("mail", "mail", "etl"):
        app.enqueue("send", {}, queue=queue)
    hand = Hand(app)
    hand.complete("mail")
    hand.fail("etl", "no")
    for column in ("finished_at", "started_at"):
        put_back(app, "jobs", column, 5 * MINUTE)
    while RollUp(backend).tick() < 1:
        pass
    core_of(app).backend.leases.take("prune", hand.id)

    found = families(exporter.text())
    assert {f"{each.name}_total" if each.type == "counter" else each.name for each in found.values()} == set(METRICS)
    assert {name: each.type for name, each in found.items()}["dray_queue_run_seconds"] == "histogram"
    (retried,) = found["dray_worker_attempts"].samples
    assert retried.labels == {"queue": 'a "quoted"\\ näme', "outcome": "retried"}
    buckets = [each.value for each in found["dray_task_run_seconds"].samples if each.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2


def test_a_worker_is_scraped_while_it_works(app: App) -> None:
    runs, may_end = threading.Event(), threading.Event()

    @app.task(name="hold")
    def hold() -> None:
        runs.set()
        assert may_end.wait(60)

    counted = EndsCounted(EndLog())
    worker = Worker(core_of(app), concurrency=3, observer=counted)

    def own() -> Own:
        now = worker.condition()
        return Own(worker.slots, now.running, now.is_healthy, now.is_ready, dict(counted.counts))

    endpoint = Endpoint("127.0.0.1", 0, worker.condition, Exporter(lambda: core_of(app).backend, own).text)
    endpoint.start()

    def scraped() -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=60) as answer:
            return families(answer.read().decode())

    with worker:
        job = hold.enqueue()
        assert runs.wait(60)
        busy = scraped()
        may_end.set()
        assert job.wait(60) == "completed"
    ended = scraped()
    endpoint.close()
    assert [each.value for each in busy["dray_worker_busy"].samples] == [1]
    assert [each.value for each in busy["dray_slots_busy"].samples] == [1]
    assert [each.value for each in ended["dray_worker_attempts"].samples] == [1]
