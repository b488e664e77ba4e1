"""What holds for a dashboard below a prefix of another application, whatever that is made with."""

from __future__ import annotations

import re
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.testclient import TestClient

from dray import Access, App
from dray.web.dashboard import Dashboard

PREFIX = "/ops/jobs"
ADMIN = Access("admin", "ann")
HOME = "the parent's own"


def access(request: Request) -> Access | None:
    return ADMIN if request.headers.get("x-user") == "ann" else None


class Browser:
    """Asks an application, as ann. No lifespan is run."""

    def __init__(self, *, asgi: Any = None, wsgi: Any = None) -> None:
        self.origin = "http://testserver"
        if asgi is not None:
            self._client: httpx2.Client = TestClient(asgi, base_url=self.origin, follow_redirects=False)
        else:
            self._client = httpx2.Client(transport=httpx2.WSGITransport(app=wsgi), base_url=self.origin)

    def get(self, path: str, user: str = "ann") -> tuple[int, str]:
        answer = self._client.get(path, headers={"x-user": user})
        return answer.status_code, answer.text

    def post(self, path: str, origin: str, token: str) -> tuple[int, str | None]:
        answer = self._client.post(path, data={"token": token}, headers={"x-user": "ann", "origin": origin})
        return answer.status_code, answer.headers.get("location")


def lives_below_its_prefix(browser: Browser, made: Dashboard, app: App) -> None:
    """It has its pages and actions there, and leaves the rest to what it is mounted in. The queue mail exists."""
    assert HOME in browser.get("/")[1]

    status, page = browser.get(f"{PREFIX}/queues")
    assert status == 200
    links: set[str] = set(re.findall(r'(?:href|src|action)="([^"#]+)', page))
    assert links
    assert {link for link in links if not link.startswith(f"{PREFIX}/")} == set()
    assert browser.get(next(link for link in links if "dray.css" in link))[0] == 200
    assert browser.get(f"{PREFIX}/queues.json")[0] == 200
    assert browser.get(f"{PREFIX}//queues/")[0] == 200
    assert browser.get(f"{PREFIX}/nowhere")[0] == 404

    token = made.site.token_for(ADMIN)
    assert browser.post(f"{PREFIX}/queues/mail/pause", "http://evil.example", token)[0] == 403
    assert not app.queue("mail").is_paused
    status, location = browser.post(f"{PREFIX}/queues/mail/pause", browser.origin, token)
    assert status == 303
    assert location is not None
    assert location.startswith(f"{PREFIX}/")
    assert app.queue("mail").is_paused
    assert "Queue mail is paused." in browser.get(location)[1]


def shows_nothing_to_a_stranger(browser: Browser) -> None:
    status, page = browser.get(f"{PREFIX}/queues", user="")

    assert status == 403
    assert "mail" not in page


def asks_again_instead_of_streaming(browser: Browser, made: Dashboard) -> None:
    assert made.site.is_wsgi
    assert browser.get(f"{PREFIX}/events")[0] == 503
    assert 'data-poll="2"' in browser.get(f"{PREFIX}/queues")[1]
