"""Signing in to `dray web`: the link, the token, the session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from dray import Access, App, ConfigError
from dray.app_interface import core_of
from dray.web import login as login_module
from dray.web.dashboard import Dashboard
from dray.web.guard import own_hosts
from dray.web.link import Link
from dray.web.login import Login
from dray.web.site import Site

PORT = 8321
ORIGIN = f"http://127.0.0.1:{PORT}"
TOKEN = "correct horse battery"


@pytest.fixture
def app(tmp_path: Path) -> Any:
    """Where the database makes no difference."""
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as opened:
        opened.init()
        yield opened


class Server:
    """A dashboard as `dray web` serves it, and browsers that come to it."""

    def __init__(self, app: App, **options: Any) -> None:
        self.told: list[str] = []
        self.link = options.pop("link", Link.new())
        has_links = options.pop("has_links", True)
        login = Login(
            Access(options.pop("role", "admin"), "ann"),
            PORT,
            link=self.link if has_links else None,
            tell=self.told.append if has_links else None,
            **options,
        )
        self.made = Dashboard(Site(core_of(app), login.access, hosts=own_hosts(["localhost"]), login=login))

    def browser(self, address: str = "127.0.0.1") -> TestClient:
        return TestClient(self.made, base_url=ORIGIN, follow_redirects=False, client=(address, 50_000))


def enter(browser: TestClient, token: str, **form: str) -> Any:
    return browser.post("/login", data={"token": token, **form}, headers={"origin": ORIGIN})


def test_the_link_signs_in_one_browser_once(app: App) -> None:
    server = Server(app)
    first, second = server.browser(), server.browser()

    entered = first.get(f"/login?code={server.link.code}")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert first.get("/queues").status_code == 200

    refused = second.get(f"/login?code={server.link.code}")
    assert refused.status_code == 403
    assert "was used before" in refused.text
    assert second.get("/queues").headers["location"] == "/login?to=%2Fqueues"


def test_the_cookie_is_for_this_server_alone(app: App) -> None:
    server = Server(app)

    cookie = server.browser().get(f"/login?code={server.link.code}").headers["set-cookie"]

    assert cookie.startswith(f"dray-{PORT}=")
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
        *("httponly", "samesite=strict", "path=/", "max-age=43200")
    }


def test_the_cookie_of_a_page_with_tls_is_secure(app: App) -> None:
    server = Server(app)
    browser = TestClient(server.made, base_url="https://127.0.0.1", follow_redirects=False)

    assert "secure" in browser.get(f"/login?code={server.link.code}").headers["set-cookie"].lower()


def test_a_link_is_good_for_ten_minutes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(app)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 601)

    assert server.browser().get(f"/login?code={server.link.code}").status_code == 403


@pytest.mark.parametrize("how", ["head", "prefetch"])
def test_a_link_is_not_used_up_by_those_who_only_look(app: App, how: str) -> None:
    server = Server(app)
    address = f"/login?code={server.link.code}"
    if how == "head":
        server.browser().head(address)
    else:
        server.browser().get(address, headers={"sec-purpose": "prefetch"})

    assert server.browser().get(address).status_code == 303


def test_a_visitor_at_the_door_has_a_new_link_printed_once_the_last_is_used(app: App) -> None:
    server = Server(app)

    assert "was printed" in server.browser().get("/login").text
    assert server.told == [], "the first is good still"
    server.browser().get(f"/login?code={server.link.code}")
    for _ in range(3):
        assert server.browser().get("/login").status_code == 200
    (new,) = server.told

    assert server.browser().get(f"/login?code={new}").status_code == 303


def test_a_link_that_several_processes_know_works_in_one_of_them(app: App, tmp_path: Path) -> None:
    (tmp_path / "ticket").touch()
    link = Link.new(str(tmp_path / "ticket"))
    before, after = (Server(app, link=link, key=b"same") for _ in range(2))
    browser = before.browser()

    cookie = browser.get(f"/login?code={link.code}").cookies

    assert after.browser().get(f"/login?code={link.code}").status_code == 403
    survivor = after.browser()
    survivor.cookies = cookie
    assert survivor.get("/queues").status_code == 200, "the session lives on"


def test_a_session_ends(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(app)
    browser = server.browser()
    browser.get(f"/login?code={server.link.code}")
    now = time.time()

    monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 + 1)

    assert browser.get("/queues").status_code == 303


@pytest.mark.parametrize("forged", [b"9%s", b"%s0", b"", b"1.2.3", b"\xc2\xb2.a.b", b"9999999999.a.", b"9" * 5000])
def test_a_session_cannot_be_made_up(app: App, forged: bytes) -> None:
    server = Server(app)
    cookie = server.browser().get(f"/login?code={server.link.code}").cookies[f"dray-{PORT}"]
    sent = b"dray-%d=%s" % (PORT, forged.replace(b"%s", cookie.encode()))

    answer = server.browser().get("/queues", headers=[(b"cookie", sent)])

    assert answer.status_code == 303


def test_another_server_does_not_know_the_session(app: App) -> None:
    one, other = Server(app), Server(app)
    cookie = one.browser().get(f"/login?code={one.link.code}").cookies

    stranger = other.browser()
    stranger.cookies = cookie

    assert stranger.get("/queues").status_code == 303


def test_the_token_signs_in_and_leads_to_the_page_that_was_wanted(app: App) -> None:
    browser = Server(app, token=TOKEN, has_links=False).browser()

    page = browser.get(browser.get("/queues?a=1").headers["location"])
    assert (page.status_code, 'value="/queues?a=1"' in page.text) == (200, True)
    entered = enter(browser, TOKEN, to="/queues?a=1")

    assert (entered.status_code, entered.headers["location"]) == (303, "/queues?a=1")
    assert browser.get("/queues").status_code == 200


def test_processes_with_the_same_token_know_each_others_sessions(app: App) -> None:
    one, other = (Server(app, token=TOKEN, has_links=False) for _ in range(2))
    browser = other.browser()

    browser.cookies = enter(one.browser(), TOKEN).cookies

    assert browser.get("/queues").status_code == 200


def test_a_session_of_a_server_that_shows_is_none_where_all_may_be_done(app: App) -> None:
    """They may have the same token; one who came by a link does not know it."""
    viewer, admin = Server(app, token=TOKEN, role="viewer"), Server(app, token=TOKEN)
    browser = admin.browser()

    browser.cookies = viewer.browser().get(f"/login?code={viewer.link.code}").cookies

    assert browser.get("/queues").headers["location"].startswith("/login")


def test_the_token_is_not_taken_from_an_address(app: App) -> None:
    browser = Server(app, token=TOKEN).browser()

    assert browser.get(f"/login?code={quote(TOKEN)}").status_code == 403
    assert browser.get(f"/login?token={quote(TOKEN)}").status_code == 200
    assert browser.get("/queues").status_code == 303


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example"])
def test_signing_in_never_leads_to_another_site(app: App, to: str) -> None:
    server = Server(app, token=TOKEN)

    where = enter(server.browser(), TOKEN, to=to).headers["location"]

    assert where.startswith("/")
    assert where[1:2] not in {"/", "\\"}


def test_another_site_cannot_sign_a_browser_in(app: App) -> None:
    browser = Server(app, token=TOKEN).browser()

    for origin in ({"origin": "http://evil.example"}, {"origin": "null"}, {}):
        answer = browser.post("/login", data={"token": TOKEN}, headers=origin)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_guessing_is_slowed_down_for_the_one_who_guesses(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(app, token=TOKEN)
    guesser, user = server.browser("192.0.2.1"), server.browser("192.0.2.2")

    assert [enter(guesser, "wrong").status_code for _ in range(6)] == [403] * 5 + [429]
    late = enter(guesser, TOKEN)
    assert (late.status_code, late.headers["retry-after"]) == (429, "60")
    assert guesser.get(f"/login?code={server.link.code}").status_code == 429
    assert enter(user, TOKEN).status_code == 303

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert enter(guesser, TOKEN).status_code == 303


def test_guessing_from_many_addresses_is_slowed_down_too(app: App) -> None:
    server = Server(app, token=TOKEN)

    codes = [enter(server.browser(f"192.0.2.{n}"), "wrong").status_code for n in range(101)]

    assert codes == [403] * login_module._MOST + [429]


def test_a_token_that_is_short_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters"):
        Server(app, token="secret")


def test_scripts_and_fragments_are_told_to_sign_in(app: App) -> None:
    browser = Server(app).browser()

    assert browser.get("/queues.json").status_code == 401
    assert browser.get("/queues", headers={"hx-request": "true"}).status_code == 401
    assert browser.get("/events", headers={"hx-request": "true"}).status_code == 401
    assert browser.post("/queues/mail/pause", data={}).status_code == 401


def test_the_login_page_has_the_headers_and_its_style(app: App) -> None:
    browser = Server(app).browser()
    page = browser.get("/login")

    assert page.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert browser.get("/static/dray.css").status_code == 200


def test_another_name_of_this_machine_is_refused_at_the_door(app: App) -> None:
    """DNS rebinding: a page of another site has its own name lead here."""
    server = Server(app)

    answer = server.browser().get(f"/login?code={server.link.code}", headers={"host": f"evil.example:{PORT}"})

    assert answer.status_code == 421
    assert server.browser().get(f"/login?code={server.link.code}").status_code == 303, "and the link is not used up"
