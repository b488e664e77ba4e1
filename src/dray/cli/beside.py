"""The dashboard that `dray dev` serves beside its worker, in the worker's process: it knows the tasks as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import dray
from dray import web
from dray.app_interface import core_of
from dray.cli.apps import person
from dray.cli.door import Door, bind
from dray.cli.exits import Failure
from dray.log import log
from dray.web import extra
from dray.web.access import Access

_HOST = "127.0.0.1"
_LAST_SECONDS = 2.0


class Beside:
    """Serves during the block, on a thread that also loads the dashboard: jobs do not wait for that."""

    def __init__(self, app: dray.App, door: Door, tell: Callable[[str], None]) -> None:
        if not extra.is_installed():
            raise Failure(extra.MISSING)
        self._app = app
        self._door = door
        self._tell = tell
        self._bound = bind(_HOST, door.port)
        self._served: web.Served | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="dray-web", daemon=True)

    @property
    def link(self) -> str:
        return self._address(self._door.link.code)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._served is not None:
            self._served.stop()
            self._thread.join(_LAST_SECONDS)
        self._bound.close()

    def _serve(self) -> None:
        try:
            self._served = web.Served(
                core_of(self._app),
                self._bound,
                Access("admin", person().who),
                key=self._door.key.encode(),
                link=self._door.link,
                tell=lambda code: self._tell(self._address(code)),
            )
            if not self._is_over:
                self._served.serve()
        except Exception:
            log.exception("the dashboard has ended; jobs go on")

    def _address(self, code: str) -> str:
        return f"http://{_HOST}:{self._door.port}/login?code={code}"
