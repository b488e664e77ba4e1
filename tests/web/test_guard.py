"""What keeps a stranger's page from acting, each line of the checklist."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from dray import Access, App, ConfigError, dashboard
from dray.app_interface import core_of
from dray.backends.sqlite import files
from dray.web import assets, guard, pages
from dray.web.dashboard import Dashboard
from dray.web.page import Page, View
from dray.web.site import Site
from dray.web.visit import Visit
from tests.web.browsing import ORIGIN, Visitor

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": ORIGIN}


def open_dashboard(app: App, **options: object) -> Dashboard:
    return dashboard(app, access=lambda _: Access("admin", "ann"), **options)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(visit: Visit) -> View:
        raise RuntimeError(f"no such luck with {visit.query['secret']}")

    monkeypatch.setattr(pages, "PAGES", [*pages.PAGES, Page("/broken", show, "")])


# The Host


@pytest.mark.parametrize("host", ["evil.example", "ops.example.com.evil.example", "", "127.0.0.1"])
def test_a_name_that_is_not_ours_is_refused(app: App, host: str) -> None:
    client = TestClient(open_dashboard(app, hosts=["ops.example.com"]))

    refused = client.get("/queues", headers={"host": host})

    assert refused.status_code == 421
    assert "--allow-host" in refused.text
    assert "Queues" not in refused.text
    assert refused.headers["content-security-policy"] == POLICY


@pytest.mark.parametrize("host", ["ops.example.com", "OPS.example.com:8443", "ops.example.com."])
def test_our_own_name_is_served_on_any_port(app: App, host: str) -> None:
    client = TestClient(open_dashboard(app, hosts=["ops.example.com"]))

    assert client.get("/queues", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:80", "[::1]:80", "192.168.1.7", "box"])
def test_a_server_of_our_own_knows_its_names_and_every_address(host: str) -> None:
    ours = guard.own_hosts(["localhost", "box"])

    assert ours(guard.host_name(host))
    assert not ours(guard.host_name("evil.example:80"))


def test_a_mounted_dashboard_trusts_what_it_is_mounted_in(app: App) -> None:
    assert TestClient(open_dashboard(app)).get("/queues", headers={"host": "any.example"}).status_code == 200


@pytest.mark.parametrize("hosts", [["https://ops.example.com"], ["ops.example.com:80"], [""], []])
def test_hosts_that_cannot_work_are_refused_when_it_is_made(app: App, hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"hosts=|no host's name"):
        open_dashboard(app, hosts=hosts)
    with pytest.raises(TypeError, match="several names"):
        open_dashboard(app, hosts="ops.example.com")


# Where a form comes from


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://ops.example.com", "ops.example.com", 303),
        ("http://ops.example.com", "ops.example.com:80", 303),
        ("https://ops.example.com", "ops.example.com", 303),  # a proxy has ended TLS
        ("http://ops.example.com:8080", "ops.example.com:8080", 303),
        ("http://ops.example.com:8080", "ops.example.com", 403),
        ("http://evil.example", "ops.example.com", 403),
        ("http://ops.example.com.evil.example", "ops.example.com", 403),
        ("ftp://ops.example.com", "ops.example.com", 403),
        ("ops.example.com", "ops.example.com", 403),
        ("null", "ops.example.com", 403),
    ],
)
def test_a_form_counts_only_from_our_own_pages(visitor: Visitor, origin: str, host: str, status: int) -> None:
    headers = {"origin": origin, "host": host}

    answer = visitor.client.post(
        "/queues/mail/pause", data={"token": visitor.token}, headers=headers, follow_redirects=False
    )

    assert answer.status_code == status


def test_a_page_loaded_without_tls_cannot_post_to_one_with_it(app: App) -> None:
    made = open_dashboard(app)
    client = TestClient(made, base_url="https://testserver")
    token = made.site.token_for(Access("admin", "ann"))

    refused = client.post("/queues/mail/pause", data={"token": token}, headers={"origin": "http://testserver"})

    assert refused.status_code == 403


# Headers


def answers(client: TestClient) -> Iterator[tuple[str, object]]:
    for path in ("/queues", "/queues.json", "/nowhere", "/nowhere.json", "/static/dray.css", "/static/nothing.css"):
        yield path, client.get(path)
    yield "a failure", client.get("/broken?secret=1")
    yield "a post", client.post("/queues/mail/pause", content=b"", headers=FORM)
    yield "another type", client.post("/queues/mail/pause", json={})
    yield "another method", client.options("/queues")
    yield "a head", client.head("/queues")


@pytest.mark.usefixtures("broken")
def test_every_answer_has_the_headers(app: App) -> None:
    client = TestClient(open_dashboard(app))

    for name, answer in answers(client):
        headers = answer.headers  # pyright: ignore[reportAttributeAccessIssue]
        assert headers["content-security-policy"] == POLICY, name
        assert headers["x-content-type-options"] == "nosniff", name
        assert headers["referrer-policy"] == "same-origin", name
        assert headers["cross-origin-opener-policy"] == "same-origin", name
        assert headers["cross-origin-resource-policy"] == "same-origin", name
        assert headers["cache-control"] == ("no-cache" if name == "/static/dray.css" else "no-store"), name
        assert "access-control-allow-origin" not in headers, name


def test_those_who_are_refused_get_the_headers_too(app: App) -> None:
    answer = TestClient(dashboard(app, access=lambda _: None)).get("/queues")

    assert (answer.status_code, answer.headers["cache-control"]) == (403, "no-store")
    assert answer.headers["content-security-policy"] == POLICY


def test_a_site_that_was_named_may_show_it_in_a_frame(app: App) -> None:
    client = TestClient(open_dashboard(app, frame_ancestors=["'self'", "https://portal.example.com"]))

    policy = client.get("/queues").headers["content-security-policy"]

    assert policy.endswith("frame-ancestors 'self' https://portal.example.com")


@pytest.mark.parametrize("given", ["'self'; script-src *", "https://a.example, b", "a b", "", "\nx"])
def test_a_frame_ancestor_cannot_smuggle_in_another_rule(app: App, given: str) -> None:
    with pytest.raises(ConfigError, match="frame_ancestors"):
        open_dashboard(app, frame_ancestors=given)


# Style and script


def test_static_files_are_kept_by_browsers_under_an_address_that_changes_with_them(visitor: Visitor) -> None:
    named = set(re.findall(r'"(/static/[^"]+)"', visitor.page("/queues")))

    assert {urlsplit(address).path for address in named} >= {"/static/dray.css", "/static/dray.js"}
    for address in named:
        answer = visitor.client.get(address)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable", address
        assert parse_qs(urlsplit(address).query)["v"] == [assets.version()]


def test_a_static_file_is_packed_for_those_who_can_unpack_it(visitor: Visitor) -> None:
    packed = visitor.client.get("/static/dray.css", headers={"accept-encoding": "gzip"})
    plain = visitor.client.get("/static/dray.css", headers={"accept-encoding": "identity"})

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2


def test_htmx_is_the_file_that_was_published(visitor: Visitor) -> None:
    """dist/htmx.min.js of htmx.org 4.0.0. Another version is another decision: the hash changes with it."""
    served = visitor.client.get("/static/htmx.min.js").content

    assert hashlib.sha256(served).hexdigest() == "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f"


@pytest.mark.parametrize("name", ["..%2fsite.py", "%2e%2e/site.py", "../site.py", "dray.css%00"])
def test_nothing_else_is_served_as_a_static_file(visitor: Visitor, name: str) -> None:
    assert visitor.client.get(f"/static/{name}").status_code in {400, 404}


# What an action says


def test_the_next_page_says_what_was_done(app: App, visitor: Visitor) -> None:
    app.queue("mail", priority=0)

    where = visitor.post("/queues/mail/pause").headers["location"]

    assert "Queue mail is paused." in visitor.page(where)


def test_a_link_cannot_make_a_page_say_anything(app: App, visitor_as: Callable[..., Visitor]) -> None:
    app.queue("mail", priority=0)
    mine = visitor_as("admin").post("/queues/mail/pause").headers["location"]

    assert "your password" not in visitor_as("admin").page("/queues?said=Tell+us+your+password")
    assert "your password" not in visitor_as("admin").page(mine.replace("Queue", "your+password"))
    assert "is paused." not in visitor_as("admin", user="bob").page(mine), "what another user did"


@pytest.mark.parametrize("where", ["//evil.example/x", "/\\evil.example", "https://evil.example", "\\\\evil.example"])
def test_no_action_leads_to_another_site(app: App, visitor: Visitor, where: str) -> None:
    site = Site(core_of(app), lambda _: "admin")
    visit = Visit(site, Access("admin"), "/", "/ops", {}, {})

    assert visit.url(where).startswith("/ops/")
    assert Visit(site, Access("admin"), "/", "", {}, {}).url(where)[:2] not in {"//", "/\\"}


def test_an_address_keeps_its_own_query_and_part(app: App) -> None:
    visit = Visit(Site(core_of(app), lambda _: "admin"), Access("admin"), "/", "", {}, {})

    assert visit.url("/jobs?q=a#log", said="done") == "/jobs?q=a&said=done#log"


# Failures


@pytest.mark.usefixtures("broken")
def test_a_failure_is_logged_and_shown_in_a_sentence(app: App, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "dray"):
        answer = TestClient(open_dashboard(app)).get("/broken?secret=s3cret")

    assert (answer.status_code, answer.text) == (500, "Dray's dashboard failed; its log says why.")
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("dray", "the dashboard failed at GET '/broken'")
    assert record.exc_info is not None


def test_an_access_rule_that_returns_nonsense_opens_nothing(app: App, caplog: pytest.LogCaptureFixture) -> None:
    answer = TestClient(dashboard(app, access=lambda _: True)).get("/queues")  # pyright: ignore[reportArgumentType]

    assert answer.status_code == 500
    assert "Queues" not in answer.text
    assert "access= returned True" in caplog.text


@pytest.mark.parametrize("place", ["postgresql://nobody@127.0.0.1:1/none?connect_timeout=1", "missing.db"])
def test_a_database_that_is_away_is_said_on_the_page(tmp_path: Path, place: str) -> None:
    away = App(place if "://" in place else str(tmp_path / place), migrate=False)
    with away:
        client = TestClient(open_dashboard(away))
        for _ in range(2):
            page = client.get("/queues")
            assert page.status_code == 503
            assert "Out of reach" in page.text
            assert "<nav" in page.text
            assert 'method="post"' not in page.text


# Databases that can only be read


@pytest.fixture
def frozen(app: App, monkeypatch: pytest.MonkeyPatch) -> Generator[App]:
    """An App whose database may be read alone, told by the database itself."""
    core = core_of(app)
    app.queue("mail", priority=0)
    if core.settings.is_sqlite:
        app.close()

        def may(_: Path, mode: int) -> bool:
            return not mode & os.W_OK

        monkeypatch.setattr(files, "may", may)
        yield app
        return
    option = "options=-c%20default_transaction_read_only%3Don"
    read_only = f"{core.settings.url}{'&' if '?' in core.settings.url else '?'}{option}"
    with App(read_only) as opened:
        yield opened


def test_a_database_that_can_only_be_read_shows_no_action(frozen: App) -> None:
    access = Access("admin", "ann")
    made = dashboard(frozen, access=lambda _: access)
    visitor = Visitor(made, access)

    page = visitor.page("/queues")

    assert "mail" in page
    assert 'method="post"' not in page
    assert "can only be read" in visitor.post("/queues/mail/pause", 403).text


# Secrets


def test_a_form_of_one_process_is_taken_by_another(app: App) -> None:
    app.queue("mail", priority=0)
    access = Access("admin", "ann")
    one, other = (Visitor(dashboard(app, access=lambda _: access), access) for _ in range(2))

    answer = other.client.post(
        "/queues/mail/pause", data={"token": one.token}, headers={"origin": ORIGIN}, follow_redirects=False
    )

    assert answer.status_code == 303


def test_the_environment_may_name_the_secret(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_dashboard(app).site.token_for(Access("admin", "ann"))
    monkeypatch.setenv("DRAY_WEB_SECRET", "0123456789abcdef")
    after = open_dashboard(app).site.token_for(Access("admin", "ann"))

    assert before != after
    assert after == open_dashboard(app).site.token_for(Access("admin", "ann"))
    monkeypatch.setenv("DRAY_WEB_SECRET", "short")
    with pytest.raises(ConfigError, match="at least 16 characters"):
        open_dashboard(app)


def test_each_visitor_has_a_token_of_their_own(app: App) -> None:
    site = open_dashboard(app).site

    tokens = [
        site.token_for(who) for who in (Access("admin", "ann"), Access("viewer", "ann"), Access("admin", "bob"))
    ]

    assert len(set(tokens)) == 3


# Forms


def test_a_form_that_is_too_large_is_refused(visitor: Visitor) -> None:
    large = visitor.client.post("/queues/mail/pause", content=b"x" * (1024 * 1024 + 1), headers=FORM)
    many = visitor.client.post("/queues/mail/pause", content=b"a=1&" * 2_001, headers=FORM)

    assert (large.status_code, many.status_code) == (413, 413)
    assert "at most 1,048,576 bytes" in large.text


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x", ""])
def test_a_post_that_is_no_form_is_refused(visitor: Visitor, kind: str) -> None:
    headers = {"origin": ORIGIN, "content-type": kind}

    answer = visitor.client.post("/queues/mail/pause", content=b"token=1", headers=headers)

    assert answer.status_code == 415


# Methods and paths


def test_head_is_get_without_its_content(visitor: Visitor) -> None:
    got, head = visitor.client.get("/queues"), visitor.client.head("/queues")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/queues", "/queues/x/pause"])
def test_other_methods_are_refused_and_told_which_there_are(visitor: Visitor, method: str, path: str) -> None:
    answer = visitor.client.request(method, path)

    assert answer.status_code == 405
    assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["//queues", "/queues/", "/queues//", "///queues.json"])
@pytest.mark.parametrize("prefix", ["", "/ops/jobs"])
def test_slashes_too_many_do_no_harm(app: App, path: str, prefix: str) -> None:
    client = TestClient(Mount(prefix, open_dashboard(app)) if prefix else open_dashboard(app))

    answer = client.get(f"http://testserver{prefix}{path}")

    assert answer.status_code == 200


def test_every_link_of_a_mounted_dashboard_has_its_prefix(app: App) -> None:
    app.queue("mail", priority=0)
    client = TestClient(Mount("/ops/jobs", open_dashboard(app)))

    page = client.get("/ops/jobs/queues").text

    links = re.findall(r'(?:href|src|action)="([^"#]*)', page)
    assert len(links) > 10
    assert {link for link in links if not link.startswith("/ops/jobs/")} - {""} == set()


def test_the_root_of_a_mount_is_the_overview_with_and_without_a_slash(app: App) -> None:
    client = TestClient(Starlette(routes=[Mount("/ops", open_dashboard(app))]))

    assert client.get("/ops").status_code == client.get("/ops/").status_code == 200


def test_a_look_at_the_stream_does_not_hold_it_open(visitor: Visitor) -> None:
    assert visitor.client.head("/events").status_code == 200


# Markup


def test_no_template_trusts_what_it_shows() -> None:
    folder = assets._FOLDER.parent / "templates"

    for file in folder.glob("*.html"):
        text = file.read_text()
        for word in ("|safe", "| safe", "style=", "hx-on", "<script>", "javascript:", "autoescape"):
            assert word not in text, f"{file.name}: {word}"
        assert not re.search(r"\son\w+=", text), file.name


def test_markup_is_made_in_one_place() -> None:
    package = assets._FOLDER.parent

    made = re.compile(r'Markup\((?!"")')
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if made.search(file.read_text())}

    assert found == {"svg/tags.py"}
