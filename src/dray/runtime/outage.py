"""A database that cannot be used: said once, tried again after longer and longer pauses."""

from __future__ import annotations

import logging

from dray.errors import StorageError, StorageLocked
from dray.instants import SECOND

log = logging.getLogger("dray")

_LONG_LOCK = 10 * SECOND
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Outage:
    """For one loop; `what` it cannot do meanwhile, as in "renew its lease"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.pause = 0.0  # seconds until the next try; 0: there is no outage
        self._since: int | None = None
        self._is_said = False

    def goes_on(self, error: StorageError, now: int) -> float:
        """It failed, again; the pause."""
        if self._since is None:
            self._since = now
        # A lock that others hold one after the other is no outage.
        is_news = not isinstance(error, StorageLocked) or now - self._since > _LONG_LOCK
        if is_news and not self._is_said:
            self._is_said = True
            log.warning("this worker cannot %s: %s; going on as soon as it can", self._what, error)
        self.pause = min(max(self.pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        return self.pause

    def eases(self) -> None:
        """The database can be read: no reason to wait, and no news either, because on a full disk it can."""
        self.pause = 0.0

    def ends(self) -> None:
        """It worked."""
        if self._is_said:
            log.info("this worker can %s again", self._what)
        self.pause = 0.0
        self._since = None
        self._is_said = False
