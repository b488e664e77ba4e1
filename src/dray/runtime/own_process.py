"""What a worker sets in a process that is its own. A worker inside another program leaves all this alone."""

from __future__ import annotations

import ctypes
import sys

_SWITCH_INTERVAL = 0.0005  # seconds
_KEPT_BYTES = 1 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def tune() -> None:
    """Call it before there are threads."""
    # A tenth of Python's own, which is longer than most transactions of the engine: it would wait for the GIL while
    # short bodies run, and they for it.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    # By default glibc returns what a thread has freed to the system when it is over 128 KB. SQLite frees more than
    # that after a claim that follows another process's commit: each time 80 pages were mapped again, and the claim
    # took 180 us instead of 65.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # None: another C library
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)  # setting the one stops glibc from adapting the other
