"""PID 1 of a container: it reaps every process that ends, passes signals on, and ends with the worker below it.

The kernel gives orphans to PID 1 and drops signals that PID 1 has no handler for. So a command that finds itself to
be PID 1 goes on in a child, and PID 1 does nothing else.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def go_below() -> None:
    """If this process is PID 1, returns only in a child of it. Call it before there are threads."""
    if os.getpid() != 1:
        return
    # Blocked and not handled: a blocked signal is kept for `sigwait`, also for PID 1 and also before the fork.
    watched = {*_PASSED_ON, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a shell may have left it ignored: PID 1 would hear of no end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child:
        _be_init(child, watched)
    os.setpgid(0, 0)  # Ctrl-C at a terminal would reach it twice: from the kernel and from PID 1
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_init(child: int, watched: set[signal.Signals]) -> NoReturn:
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            os.kill(child, number)  # it is not reaped yet, so its id is no other process's
            continue
        code = _reap(child)
        if code is not None:
            os._exit(code)


def _reap(child: int) -> int | None:
    """Reaps all that have ended. Returns the exit code of the child, if it was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended
