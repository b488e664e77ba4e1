"""What a worker sets in a process that is its own. A worker inside another program leaves all this alone."""

from __future__ import annotations

import ctypes
import sys

_SWITCH_INTERVAL = 0.0005  # seconds
_KEPT_BYTES = 1 << 20


def tune() -> None:
    """Call it before there are threads."""
    # A tenth of Python's own, which is longer than most transactions of the engine: it would wait for the GIL while
    # short bodies run, and they for it.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    # By default glibc returns what a thread has freed to the system when it is over 128 KB. SQLite frees more than
    # that after a claim that follows another process's commit: each time 80 pages were mapped again, and the claim
    # took 180 us instead of 65. A larger block that is freed makes glibc keep more from then on. `mallopt` would stop
    # it from adapting: a body that used 8 MB again and again then paid 2,000 page faults, 3 ms, each time.
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.free(libc.malloc(_KEPT_BYTES))
