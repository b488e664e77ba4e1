"""The dashboard on a socket of its own, with its own way to sign in: for `dray web` and `dray dev`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dray.web.dashboard import Dashboard
from dray.web.guard import own_hosts
from dray.web.link import Link
from dray.web.login import Login
from dray.web.server import Server
from dray.web.site import Site

if TYPE_CHECKING:
    from dray.app_interface import AppCore
    from dray.web.access import Access


class Served:
    """`tell` prints the code of a link; None: visitors sign in with the token. `key`: of the sessions."""

    def __init__(
        self,
        core: AppCore,
        bound: socket.socket,
        access: Access,
        *,
        token: str | None = None,
        names: Iterable[str] = (),
        key: bytes | None = None,
        link: Link | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        login = Login(access, bound.getsockname()[1], token=token, key=key, link=link, tell=tell)
        hosts = own_hosts({"localhost", *_own_names(), *names})
        site = Site(core, login.access, hosts=hosts, login=login)
        self._server = Server(Dashboard(site), bound)

    def serve(self) -> None:
        """Serves until `stop`, in this thread."""
        self._server.serve_here()

    def stop(self) -> None:
        """Makes it end. From any thread, and from a signal's handler."""
        self._server.should_exit = True


def _own_names() -> Iterable[str]:
    name = socket.gethostname().lower()
    return [name] if name.isascii() and name.replace("-", "").replace(".", "").isalnum() else []
