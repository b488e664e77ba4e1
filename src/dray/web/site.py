"""One dashboard of one App: what all visits share."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError, DrayError, StorageError
from dray.log import log
from dray.ops.prometheus import Exporter
from dray.ops.top import Snapshot, Top
from dray.web import menu
from dray.web.access import Access, AccessRule
from dray.web.asking import Asker
from dray.web.beside import Beside
from dray.web.bulks import Bulks
from dray.web.failing import Failing
from dray.web.feed import Feed
from dray.web.fragments import Fragments
from dray.web.hiding import hiding
from dray.web.shared import Shared
from dray.web.templates import environment

if TYPE_CHECKING:
    from jinja2 import Environment

    from dray.app_interface import AppCore
    from dray.web.login import Login

SECRET_VARIABLE = "DRAY_WEB_SECRET"  # noqa: S105 - the name of a variable
_NOTED = "web_secret"  # in dray_meta
_PATIENCE = 2.0  # seconds
_SHORTEST = 16  # characters of a secret that was made by people

NOTICES = "notices"  # what needs attention
DOCTOR = "doctor"  # what it has found: shown with its age, beside a button to look again, so it outlives actions

_LOOK = 1.0  # seconds that a snapshot is shown
_COUNTED = 10_000  # where the count of a state ends: to 100,000 it took PostgreSQL 150 ms


class Site:
    """`hosts`: whether a Host header names this dashboard; None: what it is mounted in has checked that.

    `frame_ancestors`: who may show it in a frame, as the header Content-Security-Policy has it.
    """

    def __init__(
        self,
        core: AppCore,
        access: AccessRule,
        *,
        hosts: Callable[[str], bool] | None = None,
        frame_ancestors: str = "'none'",
        login: Login | None = None,
    ) -> None:
        self.core = hiding(core)
        self.access = access
        self.hosts = hosts
        self.frame_ancestors = frame_ancestors
        self.login = login
        self.is_wsgi = False  # served by WSGI: pages ask every 2 s, and there is no stream
        self.is_read_only = False  # the database can only be read: no page shows an action
        self.closing = threading.Event()  # set when the server stops: streams end
        self.feed = Feed(core, self.feed_has_seen)
        self.fragments = Fragments()
        self.asker = Asker()
        self.bulks = Bulks(lambda: self.feed.tell({"actions"}))
        self.shared = Shared()
        self.beside = Beside()
        self.pruning = Beside()  # by itself: it may take minutes
        self.failing = Failing(self.core, self.shared, self.beside, self._failures_counted)
        self.exporter = Exporter(lambda: core.backend)
        self._top: Top | None = None
        self._opening = threading.Lock()
        self._is_open = False
        self._secret = given_secret() or secrets.token_bytes(32)

    def close(self) -> None:
        """Ends all streams, at once. Pages are still shown."""
        self.closing.set()
        self.bulks.stop()
        self.beside.close()
        self.pruning.close()
        self.feed.close()

    @cached_property
    def templates(self) -> Environment:
        return environment()

    def open(self) -> None:
        """Asks the database, once, whether it can be written and which secret all processes sign with."""
        # Where it is away, visits do not wait for each other's attempts to reach it.
        if self._is_open or not self._opening.acquire(timeout=_PATIENCE):
            return
        try:
            if not self._is_open:
                self.is_read_only = not self.core.backend.is_writable()
                if given_secret() is None:
                    self._share_secret()
                self._is_open = True
        except DrayError as error:  # the page says so too; the next visit asks again
            log.debug("the dashboard cannot read its secret yet: %s", error)
        finally:
            self._opening.release()

    def _share_secret(self) -> None:
        """Forms are answered by any process of a server, and after a restart: the secret is kept with the tables."""
        backend = self.core.backend
        if not self.is_read_only:
            backend.note_once(_NOTED, secrets.token_hex(32))
        noted = backend.noted(_NOTED)
        if noted is not None:
            self._secret = noted.encode()

    def snapshot(self) -> Snapshot:
        """What goes on, at most a second old: one look for all visits."""
        return self.shared.get("snapshot", _LOOK, self._look)

    def _look(self) -> Snapshot:
        top = self._top
        if top is None:
            top = self._top = Top(self.core.backend, _COUNTED)
        return top.look(lambda count: self.beside.do("numbers", lambda: self._count(count)))

    def _count(self, count: Callable[[], None]) -> None:
        count()
        self.shared.drop("snapshot")
        self.feed.tell({"jobs", "queues"})

    def feed_has_seen(self) -> None:
        """A change: the next page must show it."""
        self.shared.drop("snapshot")

    def forget(self) -> None:
        """An action has changed something: the next page shows it."""
        if self._top is not None:
            self._top.forget()
        self.shared.forget(DOCTOR)
        self.failing.forget()

    def _failures_counted(self) -> None:
        """Open pages, and the sentences on them, show the new counts."""
        self.shared.drop((NOTICES, None))
        self.feed.tell({"jobs"})

    def menu(self, access: Access) -> dict[str, str]:
        """The numbers beside the entries of the menu. None where the database cannot be read: the page says that."""
        try:
            return menu.numbers(self, access)
        except StorageError:
            return {}

    def token_for(self, access: Access) -> str:
        """What a form must carry: it cannot be guessed, and is one visitor's."""
        return self.sign(f"form:{access.role}:{access.user}")

    def sign(self, text: str) -> str:
        self.open()
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_signed(self, text: str, signature: Any) -> bool:
        if not isinstance(signature, str):
            return False
        return hmac.compare_digest(self.sign(text).encode(), signature.encode("utf-8", "replace"))


def given_secret() -> bytes | None:
    """The secret that the environment names, if it names one."""
    given = os.environ.get(SECRET_VARIABLE)
    if not given:
        return None
    if len(given) < _SHORTEST:
        raise ConfigError(
            f"{SECRET_VARIABLE} must have at least {_SHORTEST} characters; leave it out to have one made"
        )
    return given.encode()
