"""The names of OpenTelemetry's messaging conventions, which are still in development: here and nowhere else.

A queue is a destination, a job is a message, an attempt is the processing of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

# Attributes
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"  # of a step: its workflow
CLIENT_ID: Final = "messaging.client.id"  # the worker
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
TASK: Final = "dray.task"  # the conventions have none for these two
ATTEMPT: Final = "dray.attempt"

# Operations, by name and by type
CREATE: Final = "create"
SEND: Final = "send"
PROCESS: Final = "process"

# Metrics
SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
MESSAGES: Final = "{message}"
SECONDS: Final = "s"

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
BODY_BUCKETS: Final = (*BUCKETS, 30, 60, 300, 900, 3600)  # jobs may take long

OTHER: Final = "_OTHER"


def attributes(operation: str, more: Mapping[str, str | int | None]) -> dict[str, str | int]:
    """The attributes of a span or of a measurement, without those that are None."""
    given = {name: value for name, value in more.items() if value is not None}
    return {SYSTEM: "dray", OPERATION_NAME: operation, **given}


def span_name(operation: str, queue: str | None) -> str:
    return operation if queue is None else f"{operation} {queue}"


def type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class BoundedNames:
    """Values of a metric's attribute: a store of metrics keeps a series for each, for ever. The first `most` are kept
    apart, all others count as one."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name
