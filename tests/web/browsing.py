"""A visitor of the dashboard: reads pages, follows forms as a browser without a script does."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient

from dray import Access
from dray.web.dashboard import Dashboard

ORIGIN = "http://testserver"


def come_later(dashboard: Dashboard) -> None:
    """Lets the next page read everything, as for one who comes a while later."""
    dashboard.site._top = None
    dashboard.site.shared.forget()


class Visitor:
    def __init__(self, dashboard: Dashboard, access: Access) -> None:
        self.client = TestClient(dashboard, raise_server_exceptions=True)
        self._dashboard = dashboard
        self.site = dashboard.site
        self.token = dashboard.site.token_for(access)

    def come_later(self) -> None:
        come_later(self._dashboard)

    def page(self, path: str, status: int = 200) -> str:
        self.come_later()
        answer = self.client.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.text

    def words(self, path: str, status: int = 200) -> str:
        """The text of a page as a reader sees it: without markup, one space between words."""
        main = self.page(path, status).partition("<main")[2]
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", main.partition(">")[2])).split())

    def json(self, path: str, status: int = 200) -> Any:
        self.come_later()
        answer = self.client.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def post(self, path: str, status: int = 303, origin: str | None = ORIGIN, **form: str) -> Any:
        """Sends a form, with the token unless it is given; returns the answer."""
        form = {"token": self.token, **form} if "token" not in form else form
        headers = {} if origin is None else {"origin": origin}
        answer = self.client.post(path, data=form, headers=headers, follow_redirects=False)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer


def attributes(page: str) -> set[str]:
    """The names of all attributes in a page, as a browser reads them."""
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.update(name for name, _ in attrs)

    Reader().feed(page)
    return found
