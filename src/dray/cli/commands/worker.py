"""``dray worker``: runs jobs until it is told to stop."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dray.app_interface import core_of
from dray.cli import logs
from dray.cli.apps import app_with_tasks, choice
from dray.cli.exits import Code, say
from dray.cli.options import command, import_option, is_typed, option, same_command
from dray.cli.parsing import given, time_option
from dray.errors import DrayError
from dray.log import log
from dray.runtime import init_process, own_process
from dray.runtime.reporting import CHANNEL
from dray.runtime.signals import SUPERVISED, keep_reload
from dray.wording import counted

if TYPE_CHECKING:
    from dray.cli.probing import Watched
    from dray.core import AppCore
    from dray.runtime.worker import Worker
    from dray.settings import Settings


_LAST_SECONDS = 5.0
_PATIENCE = 2.0  # seconds to wait for a locked file


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
    "--health-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve GET /health and /ready for probes, /metrics for Prometheus.",
)
@option("--health-host", default="127.0.0.1", show_default=True, help="Address to bind for --health-port.")
@time_option("--lease", hidden=True)
@option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True, help="What to log.")
@option("--log-format", type=click.Choice(logs.FORMATS), default="text", show_default=True, help="How to log.")
def worker(
    target: str | None,
    log_level: str,
    log_format: str,
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
    if health_port is None and is_typed("health_host"):
        raise click.UsageError("--health-host goes with --health-port, which says where probes are served")
    init_process.go_below()
    formatter = logs.formatter_of(log_format)
    if processes > 1 and SUPERVISED not in os.environ:
        from dray.cli.probing import supervise  # noqa: PLC0415 - one worker needs no subprocesses

        logs.configure(log_level, formatter)
        grace = 25.0 if options["grace"] is None else options["grace"]
        # The children find SUPERVISED in their environment.
        return supervise(same_command(), processes, grace, health_host, health_port, formatter)
    from dray.runtime.worker import Worker  # noqa: PLC0415 - `--help` needs no worker

    own_process.tune()
    found = core_of(app_with_tasks(target, imports))
    if not logs.configure(log_level, formatter) and log_format != "text":
        say("the app has set up logging by itself, so --log-format counts for nothing; set the format there")
    port = None if processes > 1 else health_port  # the supervisor serves it
    watched = _watched(found) if port is not None or CHANNEL in os.environ else None
    ends = None if watched is None else watched.ends
    made = Worker(found, owns_process=True, max_jobs=1 if once else None, observer=ends, **given(options))
    queues, tasks = options["queues"] or "all", ", ".join(found.registry.names()) or "none"
    with nullcontext() if watched is None else watched.serve(made, health_host, port, formatter):
        place = _place(found.settings)
        logs.announce(f"worker {os.getpid()} on {place}; queues: {queues}; tasks: {tasks}{_app_taken()}", formatter)
        if found.settings.is_sqlite and log_level != "error":
            _tell_of_old_sqlite(found)
        return until_told(made, burst=burst)


def _place(settings: Settings) -> str:
    unused = settings.passed_over
    return settings.place + (f" (named by the app's code; DRAY_URL names {unused})" if unused else "")


def _app_taken() -> str:
    taken = choice()
    return "" if taken is None else f"; app: {taken}"


def _tell_of_old_sqlite(core: AppCore) -> None:
    """Once for each file: nearly every Python has such a library. `dray doctor` always says so."""
    from dray.backends.sqlite import trust  # noqa: PLC0415 - it loads SQLite

    caution = trust.caution()
    if caution is None:
        return
    settings = replace(core.settings, busy_timeout=min(_PATIENCE, core.settings.busy_timeout))
    with closing(settings.open(core.clock)) as backend:
        try:
            is_new = backend.note_once("told_of_old_sqlite", caution.partition(" has ")[0])
        except DrayError as error:  # the worker meets it too, and knows what to do
            log.debug("whether the SQLite library was told of is not known: %s", error)
            return
    if is_new:
        log.warning("%s; `dray doctor` says more. Shown once per file", caution)


def _watched(core: AppCore) -> Watched:
    from dray.cli.probing import Watched  # noqa: PLC0415 - 30 ms, only for --health-port and below a supervisor

    return Watched(core)


def until_told(worker: Worker, *, burst: bool) -> int:
    """Runs a worker that owns this process, and returns the exit code, unless it ends or replaces the process."""
    from dray.runtime.worker import Ending  # noqa: PLC0415 - loaded with the worker

    here = os.getcwd()  # noqa: PTH109 - a body may change the directory
    ending = worker.run(until_idle=burst)
    if ending is Ending.RENEW:
        _renew(here, reloads=worker.voice.reloads)
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


def _renew(here: str, *, reloads: bool) -> NoReturn:
    """Replaces this process, because only its end stops bodies that nothing else can stop."""
    sys.stdout.flush()
    sys.stderr.flush()
    if SUPERVISED in os.environ:
        os._exit(Code.RENEW)
    os.chdir(here)
    if reloads:
        keep_reload()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this same command
