"""OpenTelemetry: ``instrument(app)`` makes spans and metrics of what an App enqueues and runs.

The context of an enqueue travels in the headers of its jobs. Every attempt is a span of its own that continues the
trace of the enqueue and links to it. Whatever OpenTelemetry raises is logged, and changes no job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from dray.app import App
from dray.app_interface import core_of
from dray.core import AppCore
from dray.errors import ConfigError
from dray.hooks import Enqueuing
from dray.integrations import otel_conventions as conventions
from dray.job_control import Cancel, Snooze
from dray.log import log
from dray.model.new_job import AlikeJobs, NewJob, one_by_one
from dray.runtime.execution import Execution, StopCause, current
from dray.wording import short_id

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "dray.integrations.otel needs OpenTelemetry's API, which is not installed here: pip install 'dray[otel]'",
        name=missing.name,
    ) from missing

_MOST_CREATED = 1_000  # jobs of one enqueue with a span each; exporters would drop more
_NAME = "dray"


def instrument(
    app: App,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Makes spans and metrics of all that this App enqueues and runs; None: with the global providers.

    Call it beside the App, when its module is imported, so that child processes do too. A second call does nothing.
    """
    core = _core(app)
    for what, provider, method in (
        ("tracer_provider", tracer_provider, "get_tracer"),
        ("meter_provider", meter_provider, "get_meter"),
    ):
        if provider is not None and not hasattr(provider, method):
            raise TypeError(f"{what} must be one of OpenTelemetry, with {method}(), not {type(provider).__name__}")
    if core in _instrumented:
        log.warning("%s is instrumented already; to change its providers, call uninstrument(app) first", app)
        return
    telemetry = _Telemetry(tracer_provider, meter_provider)
    instruments = _Send(telemetry), _Process(telemetry), _AsyncProcess(telemetry)
    for middleware in instruments[1:]:
        app.middleware(middleware)
    core.hooks.put_around_enqueues(instruments[0])
    _instrumented[core] = instruments


def uninstrument(app: App) -> None:
    """Takes back what `instrument` did, before a worker starts or after it has ended."""
    core = _core(app)
    if core.on_enqueue:
        raise ConfigError("a worker of this App is running; call uninstrument(app) after it has ended")
    if core not in _instrumented:
        return
    send, *around = _instrumented.pop(core)
    for middleware in around:
        core.hooks.remove_middleware(middleware)
    core.hooks.remove_around_enqueues(send)


def _core(app: App) -> AppCore:
    if not isinstance(app, App):
        raise TypeError(f"only a dray.App can be instrumented, not {type(app).__name__}")
    return core_of(app)


class _Telemetry:
    """The tracer and the instruments of one App."""

    def __init__(
        self, tracer_provider: trace.TracerProvider | None, meter_provider: metrics.MeterProvider | None
    ) -> None:
        url = conventions.SCHEMA_URL
        self.tracer = trace.get_tracer(_NAME, None, tracer_provider, url)
        meter = metrics.get_meter(_NAME, "", meter_provider, url)
        counter, histogram = meter.create_counter, meter.create_histogram
        self._sent = counter(conventions.SENT, conventions.MESSAGES, "Jobs that were enqueued")
        self._consumed = counter(conventions.CONSUMED, conventions.MESSAGES, "Attempts that began")
        self._operation = histogram(
            conventions.OPERATION_DURATION,
            conventions.SECONDS,
            "How long enqueues took",
            explicit_bucket_boundaries_advisory=conventions.BUCKETS,
        )
        self._process = histogram(
            conventions.PROCESS_DURATION,
            conventions.SECONDS,
            "How long bodies ran",
            explicit_bucket_boundaries_advisory=conventions.BODY_BUCKETS,
        )
        self._queues, self._tasks, self._errors = (conventions.BoundedNames() for _ in range(3))

    def start(
        self,
        operation: str,
        kind: SpanKind,
        queue: str | None,
        attributes: dict[str, str | int | None],
        links: list[Link],
        parent: context.Context | None = None,
    ) -> Span:
        given = {conventions.OPERATION_TYPE: operation, conventions.DESTINATION: queue, **attributes}
        return self.tracer.start_span(
            conventions.span_name(operation, queue),
            context=parent,
            kind=kind,
            attributes=conventions.attributes(operation, given),
            links=links,
        )

    def measure_send(self, queues: Counter[str], seconds: float, error: str | None) -> None:
        only = next(iter(queues)) if len(queues) == 1 else None
        self._operation.record(seconds, self._labels(conventions.SEND, only, error))
        for queue, count in queues.items():
            self._sent.add(count, self._labels(conventions.SEND, queue, error))

    def count_attempt(self, queue: str) -> None:
        self._consumed.add(1, self._labels(conventions.PROCESS, queue, None))

    def measure_attempt(self, queue: str, task: str, seconds: float, error: str | None) -> None:
        labels = self._labels(conventions.PROCESS, queue, error)
        self._process.record(seconds, {**labels, conventions.TASK: self._tasks(task)})

    def _labels(self, operation: str, queue: str | None, error: str | None) -> dict[str, str | int]:
        return conventions.attributes(
            operation,
            {
                conventions.DESTINATION: None if queue is None else self._queues(queue),
                conventions.ERROR_TYPE: None if error is None else self._errors(error),
            },
        )


class _Send:
    """Around an enqueue: a span, whose context goes into the headers of the jobs."""

    def __init__(self, telemetry: _Telemetry) -> None:
        self._telemetry = telemetry

    def __call__(self, enqueuing: Enqueuing) -> AbstractContextManager[None]:
        return self._created_only(enqueuing) if enqueuing.is_added else self._sent(enqueuing)

    @contextmanager
    def _created_only(self, enqueuing: Enqueuing) -> Generator[None]:
        if not self._create(enqueuing):
            enqueuing.add_headers(_injected(None))  # that it is not sampled holds for the step too
        yield

    @contextmanager
    def _sent(self, enqueuing: Enqueuing) -> Generator[None]:
        jobs = enqueuing.jobs
        queues, tasks = _queues_and_tasks(jobs)
        count = queues.total()
        links = self._create(enqueuing) if 1 < count <= _MOST_CREATED else []
        span = self._telemetry.start(
            conventions.SEND,
            SpanKind.CLIENT if links else SpanKind.PRODUCER,
            next(iter(queues)) if len(queues) == 1 else None,
            {
                conventions.TASK: tasks.pop() if len(tasks) == 1 else None,
                conventions.BATCH_COUNT: count if count > 1 else None,
                conventions.MESSAGE_ID: None if count > 1 else one_by_one(jobs)[0].id,
            },
            links,
        )
        began, error_type = time.perf_counter(), None
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                if not links:
                    enqueuing.add_headers(_injected(None))
                yield
        except BaseException as error:
            error_type = conventions.type_name(error)
            _note_error(span, error, error_type)
            raise
        finally:
            duplicates = [number for number, job in enumerate(enqueuing.handles or ()) if job.duplicate]
            if duplicates:  # their unique keys were held, by jobs that were there already
                queues -= Counter(one_by_one(jobs)[number].queue for number in duplicates)
                if enqueuing.handles is not None and count == 1:
                    span.set_attribute(conventions.MESSAGE_ID, enqueuing.handles[0].id)
            span.end()
            self._telemetry.measure_send(queues, time.perf_counter() - began, error_type)

    def _create(self, enqueuing: Enqueuing) -> list[Link]:
        """Gives each job a context of its own. Returns none if nothing is recorded: then all have the same."""
        headers: list[dict[str, str]] = []
        links: list[Link] = []
        for job in one_by_one(enqueuing.jobs):
            of_job: dict[str, str | int | None] = {
                conventions.TASK: job.task,
                conventions.MESSAGE_ID: job.id,
                conventions.CONVERSATION_ID: job.workflow_id,
            }
            span = self._telemetry.start(conventions.CREATE, SpanKind.PRODUCER, job.queue, of_job, [])
            is_recorded = span.is_recording()
            span.end()
            if not is_recorded:
                return []
            headers.append(_injected(trace.set_span_in_context(span)))
            links.append(Link(span.get_span_context()))
        enqueuing.add_headers_each(headers)
        return links


class _Process:
    """Around the body of a function: a span for the attempt."""

    def __init__(self, telemetry: _Telemetry) -> None:
        self._telemetry = telemetry

    def __call__(self, ctx: Any, call: Callable[[], Any]) -> Any:
        with _Attempt(self._telemetry, ctx):
            return call()


class _AsyncProcess(_Process):
    """As `_Process`, for coroutine functions."""

    async def __call__(self, ctx: Any, call: Callable[[], Any]) -> Any:
        with _Attempt(self._telemetry, ctx):
            return await call()


class _Attempt:
    """The span of one attempt. The body runs, and ends as it ends, whatever OpenTelemetry does."""

    _span: Span | None = None
    _token: Any = None

    def __init__(self, telemetry: _Telemetry, ctx: Any) -> None:
        self._telemetry, self._ctx = telemetry, ctx
        self._execution = current.get()  # None: `dray run`
        self._began = time.perf_counter()

    def __enter__(self) -> None:
        try:
            self._start()
        except Exception:  # noqa: BLE001 - whatever it is, the body runs
            self._complain()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, frames: Any) -> None:
        try:
            self._end(error)
        except Exception:  # noqa: BLE001 - whatever it is, the body has ended as it has
            self._complain()

    def _start(self) -> None:
        ctx, telemetry = self._ctx, self._telemetry
        # Not the context that is here: in a test it is the test's, and the duties of a worker have none to pass on.
        parent = propagate.extract(ctx.headers, context.Context())
        sent = trace.get_current_span(parent).get_span_context()
        of_job: dict[str, str | int | None] = {
            conventions.TASK: ctx.task,
            conventions.MESSAGE_ID: ctx.job_id,
            conventions.ATTEMPT: ctx.attempt,
            conventions.CLIENT_ID: None if self._execution is None else self._execution.worker_id,
            conventions.CONVERSATION_ID: None if self._execution is None else self._execution.claim.workflow_id,
        }
        links = [Link(sent)] if sent.is_valid else []
        self._span = telemetry.start(conventions.PROCESS, SpanKind.CONSUMER, ctx.queue, of_job, links, parent)
        self._token = context.attach(trace.set_span_in_context(self._span, parent))
        telemetry.count_attempt(ctx.queue)

    def _end(self, error: BaseException | None) -> None:
        seconds = time.perf_counter() - self._began
        error_type = _attempt_error(error, self._execution)
        if self._token is not None:
            context.detach(self._token)
        if self._span is not None:
            if error is not None and error_type is not None:
                _note_error(self._span, error, error_type)
            self._span.end()
        self._telemetry.measure_attempt(self._ctx.queue, self._ctx.task, seconds, error_type)

    def _complain(self) -> None:
        log.exception("OpenTelemetry failed for job %s; the job is not affected", short_id(self._ctx.job_id))


def _attempt_error(error: BaseException | None, execution: Execution | None) -> str | None:
    """What an attempt failed with; None: it did not. To be stopped or put off is no failure."""
    if error is None or isinstance(error, Snooze | Cancel):
        return None
    if execution is not None and execution.stop is not None:
        return "Timeout" if execution.stop is StopCause.TIMEOUT else None
    return conventions.type_name(error)


def _note_error(span: Span, error: BaseException, error_type: str) -> None:
    span.set_attribute(conventions.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, error_type))
    span.record_exception(error)


def _injected(of: context.Context | None) -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, of)
    return carrier


def _queues_and_tasks(jobs: Sequence[NewJob] | AlikeJobs) -> tuple[Counter[str], set[str]]:
    if isinstance(jobs, AlikeJobs):
        return Counter({jobs.pattern.queue: len(jobs.ids)}), {jobs.pattern.task}
    return Counter(job.queue for job in jobs), {job.task for job in jobs}


# What `instrument` has put where, by the App.
_instrumented: WeakKeyDictionary[AppCore, tuple[_Send, _Process, _AsyncProcess]] = WeakKeyDictionary()
