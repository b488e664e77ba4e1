"""An instrumented App whose tasks child processes can import. Every process writes its spans to one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import dray
from dray.integrations.otel import instrument


class FileExporter(SpanExporter):
    """A line of JSON for each span; where to is read from the environment at each export."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["SPANS"]).open("a") as file:
            for span in spans:
                file.write(json.dumps({**json.loads(span.to_json()), "pid": os.getpid()}) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=50))
app = dray.App("sqlite:///shop.db")
instrument(app, provider)
tracer = provider.get_tracer("shop")


@app.task(runner="process", max_attempts=3, retry=0)
def in_process(ctx: dray.Context) -> None:
    with tracer.start_as_current_span("work"):
        if ctx.attempt < ctx.max_attempts:
            raise ValueError(ctx.attempt)


@app.task(runner="process", max_attempts=1)
async def in_async_process() -> None:
    with tracer.start_as_current_span("work"):
        pass


@app.task(runner="process", name="grown")
def grown() -> None:
    pass


@app.task(runner="process", name="grow")
def grow(ctx: dray.Context) -> None:
    ctx.add(grown)
    grown.enqueue()
