"""Calls about groups of processes that Python does not have.

Linux has all of them. Elsewhere (macOS, the BSDs) there is a substitute for each, so that importing this never fails.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


# Asks a child for its stack. Not SIGUSR1 or SIGUSR2, which bodies may use. SIGINFO is a terminal's, and children have
# none. None: there is no such signal.
STACK_SIGNAL: int | None = signal.SIGRTMIN + 12 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGINFO", None)
SIGNALS = {signal.SIGTERM} if STACK_SIGNAL is None else {signal.SIGTERM, STACK_SIGNAL}  # that a child is sent

_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
HAS_DEATH_SIGNAL = _prctl is not None


def ask_for_death_signal(number: int) -> None:
    """Asks the kernel to send a signal to this process when the thread that started it ends, where it can."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def set_name(name: str) -> None:
    """What ps and top show; at most 15 characters."""
    if _prctl is not None:
        _prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def ask_for_stack(pid: int) -> bool:
    """Makes a child write its stack; False: there is no signal for that here."""
    if STACK_SIGNAL is None:
        return False
    kill(pid, STACK_SIGNAL)
    return True


def ended(pid: int) -> tuple[int, bool] | None:
    """The exit code of a child (negative: the signal that killed it) if it has ended, and whether it is reaped: from
    then on its number may be another process's. Where an end can be told alone, it keeps its number."""
    if hasattr(os, "waitid"):
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return (found.si_status if found.si_code == os.CLD_EXITED else -found.si_status), False
    found_pid, status = os.waitpid(pid, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status), True) if found_pid else None


def kill(pid: int, number: int) -> None:
    """Sends a signal, if the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(group: int) -> None:
    """Kills each process of a group, if there is any left."""
    with suppress(ProcessLookupError, PermissionError):  # the latter: what is left runs as another user
        os.killpg(group, signal.SIGKILL)


def await_end_of_group(group: int, seconds: float) -> None:
    """Waits until no process of a group lives; killed ones may have some memory to give back first."""
    deadline = time.monotonic() + seconds
    while _has_members(group) and time.monotonic() <= deadline:
        time.sleep(0.002)


def _has_members(group: int) -> bool:
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - as are the next: there may be thousands
    except OSError:
        return _can_be_signalled(group)
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has just ended
        if int(its_group) == group and state not in b"ZX":
            return True
    return False


def _can_be_signalled(group: int) -> bool:
    """The same without /proc."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # the latter: macOS says so of those that have ended
        return False
    return True
