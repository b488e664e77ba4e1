"""What pages do not wait for: one thread that counts or prunes beside them, and ends when nothing more is wanted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, Thread

from dray.errors import DrayError
from dray.log import log


class Beside:
    """From any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._wanted: dict[Hashable, Callable[[], object]] = {}  # in the order in which they were asked for
        self._thread: Thread | None = None
        self._is_closed = False

    def do(self, key: Hashable, work: Callable[[], object]) -> bool:
        """Has work done soon. False: work of this key is waiting or being done, or this is closed."""
        with self._lock:
            if self._is_closed or key in self._wanted:
                return False
            self._wanted[key] = work
            if self._thread is None or not self._thread.is_alive():  # it does not live on in a fork
                self._thread = Thread(target=self._run, name="dray-beside", daemon=True)
                self._thread.start()
            return True

    def close(self) -> None:
        """Ends the thread after what it is doing, without waiting for it."""
        with self._lock:
            self._is_closed = True

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, work = found
            try:
                work()
            except DrayError as error:  # a page that cannot read either says so
                log.warning("the dashboard could not go on beside its pages: %s", error)
            finally:
                with self._lock:
                    self._wanted.pop(key, None)

    def _next(self) -> tuple[Hashable, Callable[[], object]] | None:
        with self._lock:
            found = None if self._is_closed else next(iter(self._wanted.items()), None)
            if found is None:
                self._thread = None
            return found
