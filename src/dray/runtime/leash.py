"""Steps a coroutine for as long as it may run.

A coroutine can swallow its cancellation and go on. Between the loop and the body there is therefore this: once cut,
no more steps reach the body, whatever it does, and nothing is left of it that could overlap with a retry.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Coroutine, Generator
from typing import Any

from dray.sanitize import escape_control

log = logging.getLogger("dray")


class Leash:
    """Leads one coroutine."""

    def __init__(self) -> None:
        self.is_cut = False
        self._body: Coroutine[Any, Any, Any] | None = None

    def lead(self, body: Coroutine[Any, Any, Any]) -> Leash:
        self._body = body
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        body = self._body
        assert body is not None
        try:
            awaited = body.send(None)
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:
                    if self.is_cut:
                        raise
                    awaited = body.throw(error)
                else:
                    awaited = body.send(sent)
        except StopIteration as end:
            return end.value

    def stack(self) -> str | None:
        """Where the coroutine waits."""
        lines: list[str] = []
        step: Any = self._body
        while step is not None and getattr(step, "cr_frame", None) is not None:
            lines += traceback.format_stack(step.cr_frame, limit=1)
            step = step.cr_await
        return "".join(lines) or None

    def cut(self) -> None:
        """No further step; call it on the loop's thread, then cancel the task that awaits this."""
        self.is_cut = True

    def bury(self) -> None:
        """Ends the body where it stands, once nothing awaits it."""
        if self._body is None:
            return
        try:
            self._body.close()
        except BaseException as error:  # noqa: BLE001 - its clean-up may raise anything; it is over either way
            log.debug("a coroutine that was cut off raised %s", escape_control(type(error).__name__))
