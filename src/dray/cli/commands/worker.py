"""``dray worker``: runs jobs until it is told to stop."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dray.cli import logs
from dray.cli.exits import Code, Failure
from dray.cli.shared import app_with_tasks, import_option, load_tasks, option, same_command, shared
from dray.cli.times import Duration
from dray.wording import counted

if TYPE_CHECKING:
    from dray.app import App
    from dray.runtime.worker import Worker

log = logging.getLogger("dray")

_GRACE = 25.0
_LAST_SECONDS = 5.0


@click.command()
@click.argument("target", required=False, metavar="[APP]")
@option("-q", "--queues", metavar="LIST", help="Queues in order (mail,default) or by weight (mail:4,default:1).")
@option("-c", "--concurrency", type=int, metavar="N", help="How many bodies may run at a time.")
@option("--processes", type=click.IntRange(1), default=1, metavar="N", help="How many worker processes to run.")
@import_option
@option("--burst", is_flag=True, help="Work off what is due, then stop.")
@option("--once", is_flag=True, help="Run one job, then stop.")
@option("--grace", type=Duration(), metavar="TIME", help="How long running jobs may take to end, at shutdown (25s).")
@option("--name", help="The worker's name in lists (host:pid).")
@option("--health-port", type=click.IntRange(0, 65_535), metavar="PORT", help="Answer probes: GET /health, /ready.")
@option(
    "--health-host", default="127.0.0.1", show_default=True, help="Where to; 0.0.0.0: everybody who can reach it."
)
@option("--lease", type=Duration(), hidden=True)
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
@shared
def worker(
    target: str | None,
    log_level: str,
    imports: tuple[str, ...],
    processes: int,
    health_port: int | None,
    health_host: str,
    *,
    burst: bool,
    once: bool,
    **options: Any,
) -> int:
    """Run jobs of the tasks in APP (module:object), until SIGTERM, SIGINT or SIGHUP.

    Then running jobs have --grace to end; the rest is handed back. A second signal ends it at once.
    """
    if once and (burst or processes > 1):
        raise click.UsageError("--once runs one job and stops; it goes with neither --burst nor --processes")
    if processes > 1 and health_port is not None:
        raise click.UsageError(
            "--health-port is one worker's, and --processes runs several; probe them with `dray health --min-workers`"
        )
    if processes > 1 and not _is_supervised():
        return _supervise(processes, options["grace"], log_level)
    found = app_with_tasks(target)
    load_tasks(found, imports)
    logs.configure(log_level)
    made = _made(found, options | {"max_jobs": 1 if once else None})
    queues, tasks = options["queues"] or "all", ", ".join(found.registry.names()) or "none"
    with _answering(made, health_host, health_port):
        logs.announce(f"worker {os.getpid()} on {found.settings.place}; queues: {queues}; tasks: {tasks}")
        if found.settings.is_sqlite:
            _caution()
        return until_told(made, burst=burst)


def _caution() -> None:
    from dray.backends.sqlite import trust  # noqa: PLC0415 - `dray worker --help` needs none

    caution = trust.caution()
    if caution is not None:
        log.warning("%s; `dray doctor` says what to do", caution)


@contextmanager
def _answering(worker: Worker, host: str, port: int | None) -> Generator[None]:
    """Answers probes while the worker works, if it is to."""
    if port is None:
        yield
        return
    from dray.runtime.health import Endpoint  # noqa: PLC0415 - 30 ms for those who want it

    try:
        endpoint = Endpoint(host, port, worker.condition)
    except OSError as error:
        raise Failure(
            f"cannot answer probes on {host}:{port}: {error.strerror}; choose another --health-port"
        ) from None
    endpoint.start()
    logs.announce(f"probes are answered on http://{f'[{host}]' if ':' in host else host}:{endpoint.port}/health")
    try:
        yield
    finally:
        endpoint.close()


def _made(app: App, options: dict[str, Any]) -> Worker:
    from dray.runtime.worker import Worker  # noqa: PLC0415 - `dray worker --help` needs none

    return Worker(app, owns_process=True, **{key: value for key, value in options.items() if value is not None})


def _is_supervised() -> bool:
    from dray.runtime.signals import SUPERVISED  # noqa: PLC0415

    return SUPERVISED in os.environ


def _supervise(count: int, grace: float | None, log_level: str) -> int:
    """Runs this same command several times; each finds by its environment that it is one of them."""
    from dray.runtime.supervisor import Supervisor  # noqa: PLC0415

    logs.configure(log_level)
    return Supervisor(same_command(), count, _GRACE if grace is None else grace).run()


def until_told(worker: Worker, *, burst: bool) -> int:
    """Runs a worker that owns this process; the exit code, if the process does not end or begin anew in it."""
    from dray.runtime.worker import Ending  # noqa: PLC0415 - loaded with the worker

    here = os.getcwd()  # noqa: PTH109 - a body may change it
    ending = worker.run(until_idle=burst)
    if ending is Ending.RENEW:
        _renew(here)
    back = f" and handed {counted(worker.stopped, 'job')} back" if worker.stopped else ""
    log.info("worker %d has stopped; it ran %s%s", os.getpid(), counted(worker.ran - worker.stopped, "job"), back)
    if ending is Ending.LEFT_BEHIND:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(Code.DONE)  # the interpreter's own end would wait for the threads of bodies that do not stop
    _end_in_time()
    return Code.DONE


def _end_in_time() -> None:
    """The interpreter waits for threads that bodies have left, for ever; what registers with `atexit` comes first."""
    timer = threading.Timer(_LAST_SECONDS, os._exit, [Code.DONE])
    timer.daemon = True
    with suppress(RuntimeError, MemoryError):  # no thread left: then it ends without a time limit
        timer.start()


def _renew(here: str) -> NoReturn:
    """Bodies run on that nothing can stop: only the end of this process can."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _is_supervised():
        os._exit(Code.RENEW)
    os.chdir(here)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the command that we are
