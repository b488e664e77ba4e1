"""A few bytes that a worker and its child both see: the order to stop, and the child's stack.

Not messages: an order has to be seen at once by a child that reads none while its body runs, and the stack is written
by a signal handler, while the interpreter may be busy in a call that keeps the GIL.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path

from dray.model.limits import TRACEBACK_BYTES
from dray.runtime.execution import Stop

_ORDER = struct.Struct("!QB")  # the number of the job that is to stop, and why
_STOPS = tuple(Stop)
_STACK_AT = 16
_OURS = (f'  File "{Path(__file__).parents[1]}', '  File "<string>", line 1 in <module>')  # frames below the body's
_PATIENCE = 0.25  # seconds; a stack is written in a millisecond, unless the process is stopped


class SharedFlags:
    """One side's view of it; `descriptor` is what the other side needs."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> SharedFlags:
        if hasattr(os, "memfd_create"):
            flags = cls(os.memfd_create("dray-flags"))
        else:
            with tempfile.TemporaryFile() as file:
                flags = cls(os.dup(file.fileno()))
        flags.wipe()
        return flags

    def wipe(self) -> None:
        """Before a job: no order, no stack. Both sides share the place where the next bytes go."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, _ORDER.pack(0, 0), 0)
        os.lseek(self.descriptor, _STACK_AT, os.SEEK_SET)

    def order(self, job: int, stop: Stop) -> None:
        """Has a job stop; jobs are numbered from 1."""
        os.pwrite(self.descriptor, _ORDER.pack(job, _STOPS.index(stop)), 0)

    def stop_of(self, job: int) -> Stop | None:
        """Why a job is to stop, if it is."""
        order: tuple[int, int] = _ORDER.unpack(os.pread(self.descriptor, _ORDER.size, 0))
        number, stop = order
        return _STOPS[stop] if number == job else None

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def stack(self) -> str | None:
        """The newest of what was written of the stack."""
        return self._read(max(_STACK_AT, self.size - TRACEBACK_BYTES))

    def await_stack(self, before: int) -> str | None:
        """What was written since the size was `before`, once no more comes."""
        deadline = time.monotonic() + _PATIENCE
        last = before
        while time.monotonic() < deadline:
            time.sleep(0.005)
            size = self.size
            if size == last > before:
                break
            last = size
        return self._read(max(before, last - TRACEBACK_BYTES))

    def _read(self, start: int) -> str | None:
        text = os.pread(self.descriptor, TRACEBACK_BYTES, start).decode(errors="replace").strip("\0\n")
        return "\n".join(line for line in text.split("\n") if not line.startswith(_OURS)) or None

    def close(self) -> None:
        os.close(self.descriptor)
