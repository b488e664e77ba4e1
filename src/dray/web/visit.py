"""One request by one visitor: what pages may ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dray.instants import to_datetime
from dray.model.action import By

if TYPE_CHECKING:
    from dray.app_interface import AppCore
    from dray.backends.base import Backend
    from dray.web.access import Access
    from dray.web.site import Site


@dataclass(slots=True)
class Visit:
    site: Site
    access: Access
    path: str  # below the mount: "/jobs/0199…"
    root: str  # where the dashboard is mounted: "" or "/ops/jobs"
    params: Mapping[str, str]  # of the path
    query: Mapping[str, str]
    is_fragment: bool = False  # the page's own part alone, to be put into the page that is open
    said: str | None = None  # by the action that led here
    many: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])  # of the query: all of a name
    _now: datetime | None = field(default=None)

    @property
    def core(self) -> AppCore:
        return self.site.core

    @property
    def backend(self) -> Backend:
        return self.site.core.backend

    @property
    def now(self) -> datetime:
        """The database's time, read once a visit."""
        if self._now is None:
            self._now = to_datetime(self.backend.now()).astimezone(UTC)
        return self._now

    @property
    def user(self) -> str:
        """The name that is written with an action."""
        return self.access.user or f"{self.access.role} on the web"

    @property
    def by(self) -> By:
        """Who acts, as actions are written down."""
        return By(self.user, "web")

    def may(self, verb: str) -> bool:
        """Whether to show the button: the role has the right, and this database can be written."""
        return not self.site.is_read_only and self.access.may(verb)

    def url(self, path: str, **query: Any) -> str:
        """The address of a page of this dashboard, wherever it is mounted. Parts of it that are None are left out.

        `path` may have a query of its own. It never leads to another site: `//example.com` is a page that is missing.
        """
        given = {name: value for name, value in query.items() if value is not None and value != ""}
        path, _, part = path.partition("#")
        address = self.root + "/" + path.lstrip("/\\")
        if given:
            address += f"{'&' if '?' in path else '?'}{urlencode(given)}"
        return f"{address}#{part}" if part else address

    @property
    def token(self) -> str:
        """For the forms of this page: a POST without it is refused."""
        return self.site.token_for(self.access)
