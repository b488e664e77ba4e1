from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dray
from dray.integrations.otel import instrument


class Telemetry:
    """What an App has exported so far, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("web")

    @property
    def spans(self) -> list[Any]:  # of `ReadableSpan`, whose attributes are all optional to checkers
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def metric(self, name: str) -> list[Any]:
        """The points of a metric."""
        data = self.reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def telemetry() -> Generator[Telemetry]:
    made = Telemetry()
    yield made
    made.provider.shutdown()
    made.meters.shutdown()


@pytest.fixture
def app(made_url: str) -> Generator[dray.App]:
    with dray.App(made_url) as opened:
        yield opened


@pytest.fixture
def traced(app: dray.App, telemetry: Telemetry) -> dray.App:
    instrument(app, telemetry.provider, telemetry.meters)
    return app
