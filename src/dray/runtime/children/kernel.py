"""What the kernel does for families of processes, where Python has no call for it."""

from __future__ import annotations

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

# Asks a child for its stack. A signal of its own: bodies may use the two for users.
STACK_SIGNAL = signal.SIGRTMIN + 12


_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)


def ask_for_death_signal(number: int) -> None:
    """Has the kernel send a signal to this process when the thread that started it ends, as far as it can."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def set_name(name: str) -> None:
    """What ps and top show; at most 15 characters."""
    if _prctl is not None:
        _prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def kill(pid: int, number: int) -> None:
    """Sends a signal, if there is still somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_group(group: int) -> None:
    """Kills each process of a group, if there is any left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the latter: all that is left runs as somebody else
        return


def await_end_of_group(group: int, seconds: float) -> bool:
    """Waits until no process of a group lives; killed ones may have some memory to give back first."""
    deadline = time.monotonic() + seconds
    while _has_members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _has_members(group: int) -> bool:
    for name in os.listdir("/proc"):  # noqa: PTH208 - as are the next: there may be thousands
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
