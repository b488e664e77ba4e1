"""Bulk actions that run in this process: a thread each, a few at once, with progress and stop.

Each has its row in Actions from its beginning, which other processes of the server show and stop it by; what is kept
here says more: how many jobs are left, and why some were refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dray.errors import DrayError
from dray.log import log
from dray.ops.bulk import COMPLETE, FAILED, STOPPED
from dray.web.page import Refused

if TYPE_CHECKING:
    from datetime import datetime

    from dray.ops.bulk import Bulk, Progress

_AT_ONCE = 4
_KEPT = 50  # of those that have ended, the newest


@dataclass(slots=True)
class Running:
    """A bulk action, as its page shows it."""

    bulk: Bulk
    who: str  # as it is written into Actions
    what: str  # the search, in words
    started_at: datetime
    progress: Progress | None = None  # None: the first step has not ended
    error: str | None = None  # what ended it before its end
    stopped_by: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        return self.bulk.action_id

    @property
    def is_over(self) -> bool:
        return self.ended.is_set()

    @property
    def is_stopping(self) -> bool:
        return self.bulk.is_stopped and self.error is None

    def run(self, tell: Callable[[], None]) -> None:
        """`tell`: pages that show it are to be made again."""
        try:
            while self.progress is None or not self.progress.is_over:
                self.progress = self.bulk.step()
                tell()
        except DrayError as error:
            self.error = str(error)
        except Exception as error:
            log.exception("a bulk action of the dashboard failed")
            self.error = f"{type(error).__name__}; the dashboard's log says more"
        finally:
            self._note_end()
            self.ended.set()
            tell()

    def _note_end(self) -> None:
        """What has stopped it is noted already, if that was a person."""
        note = FAILED + self.error if self.error else f"{STOPPED}{self.stopped_by}" if self.is_stopping else COMPLETE
        try:
            self.bulk.end(note)
        except DrayError as error:
            log.warning("Actions does not say how bulk action %s ended: %s", self.id, error)

    def stop(self, by: str) -> None:
        """Ends it after its step."""
        self.stopped_by = by
        self.bulk.stop()


class Bulks:
    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._known = OrderedDict[str, Running]()

    def start(self, running: Running) -> None:
        """Runs an action on a thread of its own; Refused where too many run already."""
        with self._lock:
            if sum(not each.is_over for each in self._known.values()) >= _AT_ONCE:
                raise Refused(
                    f"{_AT_ONCE} bulk actions are running here already: wait until one has ended, or stop it."
                )
            self._known[running.id] = running
            ended = [key for key, each in self._known.items() if each.is_over]
            for key in ended[: max(0, len(self._known) - _KEPT)]:
                del self._known[key]
        try:
            running.bulk.begin()
        except BaseException:
            running.ended.set()
            raise
        # A daemon: a server that ends does not wait for it. Each step is one transaction.
        threading.Thread(target=running.run, args=(self._tell,), name="dray-bulk", daemon=True).start()

    def get(self, bulk_id: str) -> Running | None:
        with self._lock:
            return self._known.get(bulk_id)

    def stop(self) -> None:
        """Ends all, each after its step."""
        with self._lock:
            for each in self._known.values():
                each.stop("the end of the dashboard")
