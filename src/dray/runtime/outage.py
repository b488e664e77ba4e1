"""What a worker cannot do at the moment: said once, tried again after longer and longer pauses.

Its database may be away or locked, or the machine may have no thread or process left. Since when that has been so is
taken from the tries themselves: it begins with the first one that did not succeed, or that has not come back yet.
"""

from __future__ import annotations

import logging

from dray.errors import StorageLocked
from dray.instants import SECOND
from dray.runtime.condition import Obstacle
from dray.sanitize import escape_control

log = logging.getLogger("dray")

_LONG_LOCK = 10 * SECOND
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Outage:
    """For one loop; `what` it cannot do meanwhile, as in "renew its lease". Times are readings of the steady clock.

    Its properties are for any thread.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.pause = 0.0  # seconds until the next try; 0: there is no outage
        self.retry_at = 0
        self._began: int | None = None  # the try that is under way
        self._since: int | None = None  # the first try that failed, after the last that succeeded
        self._error = ""
        self._is_said = False

    def begins(self, now: int) -> None:
        """A try is under way."""
        self._began = now

    def returns(self) -> None:
        """It has come back, whatever it brought."""
        self._began = None

    def goes_on(self, error: Exception, now: int) -> float:
        """It failed, again; the pause."""
        if self._since is None:
            self._since = now if self._began is None else self._began
        self._error = escape_control(str(error)) or type(error).__name__
        # A lock that others hold one after the other is no outage.
        is_news = not isinstance(error, StorageLocked) or now - self._since > _LONG_LOCK
        if is_news and not self._is_said:
            self._is_said = True
            log.warning("this worker cannot %s: %s; going on as soon as it can", self._what, self._error)
        self.pause = min(max(self.pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.retry_at = now + int(self.pause * SECOND)
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

    @property
    def is_on(self) -> bool:
        """Whether the last try has failed."""
        return self._since is not None

    @property
    def obstacle(self) -> Obstacle | None:
        """The first try that has not succeeded, or has not come back yet; None: there is none."""
        since = self._began if self._since is None else self._since
        return None if since is None else Obstacle(since, self.reason)

    @property
    def reason(self) -> str:
        """In a few words, for people."""
        return f"cannot {self._what}: {self._error}" if self.is_on else f"waits to {self._what}"
