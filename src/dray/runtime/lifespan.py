"""An App, and maybe a worker, for as long as an ASGI application runs: ``FastAPI(lifespan=app.lifespan())``.

Nothing of a framework is needed: a lifespan is called with the application and returns an asynchronous context
manager. All that waits does so on a thread, so that the event loop goes on. A task that is cancelled in between waits
for the end of that step all the same: no worker is left behind half started or half stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dray.backends.awaiting import in_a_thread, to_the_end
from dray.backends.user_connection import Cancellation
from dray.errors import ConfigError

if TYPE_CHECKING:
    from dray.runtime.worker import Worker


class Lifespan:
    """What `App.lifespan` returns. Each call makes one for an application; ``async with`` uses this one itself."""

    def __init__(
        self, check_tables: Callable[[], None], make_worker: Callable[[], Worker] | None, close: Callable[[], None]
    ) -> None:
        self._parts = check_tables, make_worker, close
        self._running: ExitStack | None = None

    def __call__(self, _application: Any = None, /) -> Lifespan:
        return Lifespan(*self._parts)

    async def __aenter__(self) -> None:
        """Returns when the worker can claim jobs. Raises what keeps it from that: the server does not start then."""
        if self._running is not None:
            raise ConfigError("this lifespan is running already; make another one: app.lifespan()")
        self._running = ExitStack()
        try:
            await _on_a_thread(self._start)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Returns when the worker has stopped: its running jobs have `grace` to end."""
        running, self._running = self._running, None
        if running is not None:
            await _on_a_thread(running.close)

    def _start(self) -> None:
        assert self._running is not None
        check_tables, make_worker, close = self._parts
        self._running.callback(close)
        check_tables()
        if make_worker is not None:
            worker = make_worker()
            self._running.callback(worker.stop)
            worker.start()


async def _on_a_thread(work: Callable[[], None]) -> None:
    await to_the_end(in_a_thread(work), Cancellation())
