"""How `dray worker` is seen from outside: probes and metrics over HTTP, reports to a supervisor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING

from dray.cli import logs
from dray.cli.exits import Failure
from dray.ops.prometheus import Exporter, Own, composed
from dray.runtime.condition import Condition
from dray.runtime.end_log import EndLog
from dray.runtime.ends_counted import EndsCounted
from dray.runtime.fleet import Fleet
from dray.runtime.health import Endpoint
from dray.runtime.notify import manager_of
from dray.runtime.reporting import Reporter, channel_of
from dray.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from dray.core import AppCore
    from dray.runtime.worker import Worker


class Watched:
    """A worker that can be seen: `ends` is the observer that it is made with."""

    def __init__(self, core: AppCore) -> None:
        self.ends = EndsCounted(EndLog())
        self._core = core

    def serve(
        self, worker: Worker, host: str, port: int | None, formatter: logging.Formatter
    ) -> AbstractContextManager[object]:
        """Serves probes and metrics during the block, if there is a port. A supervisor gets reports."""
        core = self._core
        channel = channel_of(os.environ)
        if channel is not None:
            worker.voice = Reporter(channel, self.ends.counts, Exporter(lambda: core.backend).database)

        def own() -> Own:
            now = worker.condition()
            return Own(worker.slots, now.running, now.is_healthy, now.is_ready, dict(self.ends.counts))

        return _served(host, port, worker.condition, Exporter(lambda: core.backend, own).text, formatter)


def supervise(
    argv: Sequence[str], processes: int, grace: float, host: str, port: int | None, formatter: logging.Formatter
) -> int:
    """Runs several worker processes; probes and metrics are of all of them."""
    manager = manager_of(os.environ)
    fleet = None if port is None and manager is None else Fleet()
    supervisor = Supervisor(argv, processes, grace, fleet=fleet, manager=manager)
    if fleet is None:
        return supervisor.run()

    def metrics() -> str:
        now = fleet.condition()
        own = Own(fleet.slots, now.running, now.is_healthy, now.is_ready, fleet.attempts(), fleet.size)
        return composed(fleet.database(), own)

    with _served(host, port, fleet.condition, metrics, formatter):
        return supervisor.run()


def _served(
    host: str,
    port: int | None,
    condition: Callable[[], Condition],
    metrics: Callable[[], str],
    formatter: logging.Formatter,
) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    try:
        endpoint = Endpoint(host, port, condition, metrics)
    except OSError as error:
        raise Failure(
            f"cannot serve probes on {host}:{port}: {error.strerror}; choose another --health-port"
        ) from None
    endpoint.start()
    served = f"http://{f'[{host}]' if ':' in host else host}:{endpoint.port}/health"
    logs.announce(f"probes are served on {served}", formatter)
    return closing(endpoint)
