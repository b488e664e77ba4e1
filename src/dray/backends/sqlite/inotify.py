"""The kernel's word that a file was written, or a name in a folder taken: Linux's inotify, through ctypes.

As little of it as the watch needs. It opens none of the files: closing a descriptor of a database file would drop
the locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import weakref
from pathlib import Path
from typing import NamedTuple

from dray.log import log

MODIFY = 0x2
CLOSE_WRITE = 0x8
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
Q_OVERFLOW = 0x4000
IGNORED = 0x8000

_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_BUFFER = 1 << 16
_SET_TIMER_SLACK = 29  # PR_SET_TIMERSLACK


class Event(NamedTuple):
    watch: int  # -1: the queue ran over
    mask: int
    name: bytes  # of the entry, where a folder is watched


def is_there() -> bool:
    """Whether this system has it at all."""
    return hasattr(ctypes.CDLL(None, use_errno=True), "inotify_init1")


class Inotify:
    """One instance; a user has 128 of them. Raises OSError where the kernel refuses."""

    def __init__(self) -> None:
        if not is_there():
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False  # a thread that the end of the program leaves running may still read it

    def fileno(self) -> int:
        return self._descriptor

    def add(self, path: Path, mask: int) -> int:
        """Watches what is at a path now; the number its events will carry, the same while it is the same file."""
        return _checked(self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask))

    def remove(self, watch: int) -> None:
        """Watches a file no longer; its last event is IGNORED."""
        _checked(self._libc.inotify_rm_watch(self._descriptor, watch))

    def read(self) -> list[Event]:
        """The events there are; at most a buffer of them, the descriptor tells if there are more."""
        try:
            return parse(os.read(self._descriptor, _BUFFER))
        except BlockingIOError:
            return []

    def wake_on_time(self) -> None:
        """For this thread: by default the kernel ends a timed wait up to 50 µs late, to save wake-ups."""
        self._libc.prctl(_SET_TIMER_SLACK, *map(ctypes.c_ulong, (1, 0, 0, 0)))

    def close(self) -> None:
        self._close()


def start() -> Inotify | None:
    """An instance, or None where there is none to have: another system, too many in use (EMFILE), no memory."""
    try:
        return Inotify()
    except OSError as error:
        log.debug("no inotify: %s", error)
        return None


def parse(buffer: bytes) -> list[Event]:
    """Events as the kernel writes them, one after the other."""
    events: list[Event] = []
    at = 0
    while at < len(buffer):
        watch, mask, _, length = _HEADER.unpack_from(buffer, at)
        at += _HEADER.size
        events.append(Event(watch, mask, buffer[at : at + length].rstrip(b"\0")))
        at += length
    return events


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
