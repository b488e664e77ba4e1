"""``dray worker``: runs jobs until it is told to stop."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dray.cli import logs
from dray.cli.apps import app_with_tasks
from dray.cli.exits import Code, Failure
from dray.cli.options import command, import_option, option, same_command
from dray.cli.parsing import given, time_option
from dray.log import log
from dray.runtime.signals import SUPERVISED
from dray.wording import counted

if TYPE_CHECKING:
    from dray.runtime.worker import Worker


_LAST_SECONDS = 5.0
_SWITCH_INTERVAL = 0.0005  # seconds


@command()
@click.argument("target", required=False, metavar="[APP]")
@option("-q", "--queues", metavar="LIST", help="Queues in order (mail,default) or by weight (mail:4,default:1).")
@option("-c", "--concurrency", type=int, metavar="N", help="Maximum number of jobs to run at a time.")
@option("--processes", type=click.IntRange(1), default=1, metavar="N", help="Number of worker processes.")
@import_option
@option("--burst", is_flag=True, help="Run all due jobs, then stop.")
@option("--once", is_flag=True, help="Run one job, then stop.")
@time_option("--grace", help="How long running jobs may take to end at shutdown (25s).")
@option("--name", help="The worker's name in lists (host:pid).")
@option(
    "--health-port", type=click.IntRange(0, 65_535), metavar="PORT", help="Serve GET /health and /ready for probes."
)
@option("--health-host", default="127.0.0.1", show_default=True, help="Address to bind for --health-port.")
@time_option("--lease", hidden=True)
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
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

    Then running jobs have --grace to end; the others go back to their queues. A second signal ends it at once.
    """
    if once and (burst or processes > 1):
        raise click.UsageError("--once runs one job and stops; it goes with neither --burst nor --processes")
    if processes > 1 and health_port is not None:
        raise click.UsageError(
            "--health-port is for one worker, --processes runs several; probe them with `dray health --min-workers`"
        )
    if processes > 1 and SUPERVISED not in os.environ:
        from dray.runtime.supervisor import Supervisor  # noqa: PLC0415 - one worker needs no subprocesses

        logs.configure(log_level)
        grace = 25.0 if options["grace"] is None else options["grace"]
        return Supervisor(same_command(), processes, grace).run()  # children find SUPERVISED in their environment
    from dray.runtime.worker import Worker  # noqa: PLC0415 - `--help` needs no worker

    # A tenth of Python's own, which is longer than most transactions of the engine: it would wait for the GIL while
    # short bodies run, and they for it. Only here: a worker inside another program leaves its setting alone.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    found = app_with_tasks(target, imports)
    logs.configure(log_level)
    made = Worker(found, owns_process=True, max_jobs=1 if once else None, **given(options))
    queues, tasks = options["queues"] or "all", ", ".join(found.registry.names()) or "none"
    with _probed(made, health_host, health_port):
        logs.announce(f"worker {os.getpid()} on {found.settings.place}; queues: {queues}; tasks: {tasks}")
        if found.settings.is_sqlite:
            _warn_of_old_sqlite()
        return until_told(made, burst=burst)


def _warn_of_old_sqlite() -> None:
    from dray.backends.sqlite import trust  # noqa: PLC0415 - it loads SQLite

    caution = trust.caution()
    if caution is not None:
        log.warning("%s; `dray doctor` says what to do", caution)


def _probed(worker: Worker, host: str, port: int | None) -> AbstractContextManager[object]:
    """Serves probes during the block, if there is a port."""
    if port is None:
        return nullcontext()
    from dray.runtime.health import Endpoint  # noqa: PLC0415 - 30 ms, only for --health-port

    try:
        endpoint = Endpoint(host, port, worker.condition)
    except OSError as error:
        raise Failure(
            f"cannot serve probes on {host}:{port}: {error.strerror}; choose another --health-port"
        ) from None
    endpoint.start()
    logs.announce(f"probes are served on http://{f'[{host}]' if ':' in host else host}:{endpoint.port}/health")
    return closing(endpoint)


def until_told(worker: Worker, *, burst: bool) -> int:
    """Runs a worker that owns this process, and returns the exit code, unless it ends or replaces the process."""
    from dray.runtime.worker import Ending  # noqa: PLC0415 - loaded with the worker

    here = os.getcwd()  # noqa: PTH109 - a body may change the directory
    ending = worker.run(until_idle=burst)
    if ending is Ending.RENEW:
        _renew(here)
    back = f" and handed {counted(worker.stopped, 'job')} back" if worker.stopped else ""
    log.info("worker %d has stopped; it ran %s%s", os.getpid(), counted(worker.ran - worker.stopped, "job"), back)
    if ending is Ending.LEFT_BEHIND:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(Code.DONE)  # the interpreter would wait for the threads of bodies that do not stop
    # The interpreter's exit waits for ever for threads that bodies have left: with a limit. `atexit` still runs.
    timer = threading.Timer(_LAST_SECONDS, os._exit, [Code.DONE])
    timer.daemon = True
    with suppress(RuntimeError, MemoryError):  # no thread can be started: then without a limit
        timer.start()
    return Code.DONE


def _renew(here: str) -> NoReturn:
    """Replaces this process, because only its end stops bodies that nothing else can stop."""
    sys.stdout.flush()
    sys.stderr.flush()
    if SUPERVISED in os.environ:
        os._exit(Code.RENEW)
    os.chdir(here)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this same command
