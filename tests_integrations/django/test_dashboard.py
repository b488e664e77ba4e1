"""The dashboard among a site's own URLs, for staff, under WSGI and ASGI; and the admin's line that leads to it."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync

from tests_integrations.django.conftest import Make, Project

ORIGIN = {"origin": "http://testserver"}


@pytest.fixture
def shop(make_project: Make) -> Generator[Project]:
    """A project with users: everything is migrated."""
    from django.core.management import call_command

    project = make_project("sqlite", tables=False)
    call_command("migrate", verbosity=0)
    project.make_orders()
    yield project
    from dray.integrations.django.views import close

    close()


class Browser:
    """Django's test client of either kind, signed in."""

    def __init__(self, kind: str, user: Any) -> None:
        from django.test import AsyncClient, Client

        self._is_async = kind == "asgi"
        self.client: Any = AsyncClient() if self._is_async else Client()
        if user is not None:
            async_to_sync(self.client.aforce_login)(user) if self._is_async else self.client.force_login(user)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str, Any]:
        if self._is_async:
            return self._told(async_to_sync(self._aget)(path, headers))
        return self._told(self._read(self.client.get(path, headers=headers)))

    def post(self, path: str, form: dict[str, str], headers: dict[str, str] = ORIGIN) -> tuple[int, str, Any]:
        given = path, urlencode(form), "application/x-www-form-urlencoded"
        if self._is_async:
            return self._told(async_to_sync(self._apost)(*given, headers=headers))
        return self._told(self._read(self.client.post(*given, headers=headers)))

    def _read(self, response: Any) -> tuple[Any, bytes]:
        return response, b"".join(response.streaming_content) if response.streaming else response.content

    async def _aget(self, path: str, headers: dict[str, str] | None) -> tuple[Any, bytes]:
        return await self._aread(await self.client.get(path, headers=headers))

    async def _apost(self, *given: str, headers: dict[str, str]) -> tuple[Any, bytes]:
        return await self._aread(await self.client.post(*given, headers=headers))

    async def _aread(self, response: Any) -> tuple[Any, bytes]:
        if not response.streaming:
            return response, response.content
        return response, b"".join([part async for part in response.streaming_content])

    def _told(self, answer: tuple[Any, bytes]) -> tuple[int, str, Any]:
        response, body = answer
        return response.status_code, body.decode(), response


def user(name: str, *permissions: str, **more: Any) -> Any:
    from django.contrib.auth.models import Permission, User

    made = User.objects.create_user(name, password="x", **more)
    for each in permissions:
        made.user_permissions.add(Permission.objects.get(content_type__app_label="dray", codename=each))
    return made


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_staff_see_jobs_and_retry_them(shop: Project, kind: str) -> None:
    from dray.testing import drain

    failed = shop.tasks.refuse.enqueue("out of tea")
    drain(shop.app)
    browser = Browser(kind, user("ann", "view_job", "change_job", is_staff=True))

    status, page, _ = browser.get("/ops/jobs/jobs")
    assert status == 200, page
    assert "shop.tasks.refuse" in page
    links = set(re.findall(r'(?:href|src|action)="(/[^"#]+)', page))
    assert {link for link in links if not link.startswith("/ops/jobs/")} == set()
    style = next(link for link in links if "dray.css" in link)
    assert browser.get(style)[2].headers["Content-Type"].startswith("text/css")
    assert browser.get("/ops/jobs/nowhere")[0] == 404

    _, page, _ = browser.get(f"/ops/jobs/jobs/{failed.id}")
    action = next(each for each in re.findall(r'action="([^"]+)"', page) if each.endswith("/retry"))
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    status, page, _ = browser.post(action, {"token": token[1]})
    assert status == 303, page
    failed.refresh()
    assert failed.status == "READY"
    from dray.app_interface import core_of

    assert [each.who for each in core_of(shop.app).backend.actions.newest(limit=5)] == ["ann"]


# What a proxy says that the browser sees; it reaches Django as http://testserver. And that Django believes it.
BEHIND = {"x-forwarded-host": "ops.example.com", "x-forwarded-proto": "https"}
TRUSTED = {"USE_X_FORWARDED_HOST": True, "SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_forms_are_sent_through_a_proxy_that_django_trusts(shop: Project, kind: str) -> None:
    from django.test import override_settings

    shop.app.queue("mail", priority=0)
    browser = Browser(kind, user("ann", "view_job", "change_job", is_staff=True))

    def pauses(origin: str) -> int:
        _, page, _ = browser.get("/ops/jobs/queues/mail", BEHIND)
        token = re.search(r'name="token" value="([^"]+)"', page)
        assert token is not None
        form = {"token": token[1]}
        return browser.post("/ops/jobs/queues/mail/pause", form, {**BEHIND, "origin": origin})[0]

    with override_settings(**TRUSTED):
        assert pauses("http://testserver") == 403
        assert pauses("http://ops.example.com") == 403  # the page came by https
        assert not shop.app.queue("mail").is_paused
        assert pauses("https://ops.example.com") == 303
    assert shop.app.queue("mail").is_paused
    assert pauses("https://ops.example.com") == 403  # Django does not trust what any client can send
    assert pauses("http://testserver") == 303


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_others_do_not(shop: Project, kind: str) -> None:
    status, _, response = Browser(kind, None).get("/ops/jobs/")
    assert (status, response.headers["Location"]) == (302, "/admin/login/?next=/ops/jobs/")
    assert Browser(kind, user("bob")).get("/ops/jobs/")[0] == 403
    assert Browser(kind, user("eve", is_staff=True)).get("/ops/jobs/")[0] == 403

    viewer = Browser(kind, user("vic", "view_job", is_staff=True))
    assert viewer.get("/ops/jobs/")[0] == 200
    assert Browser(kind, user("root", is_staff=True, is_superuser=True)).get("/ops/jobs/")[0] == 200


def test_the_admin_leads_there(shop: Project) -> None:
    browser = Browser("wsgi", user("vic", "view_job", is_staff=True))
    assert "/admin/dray/job/" in browser.get("/admin/")[1]
    status, page, _ = browser.get("/admin/dray/job/")
    assert status == 200
    assert 'href="/ops/jobs/"' in page
    assert Browser("wsgi", user("eve", is_staff=True)).get("/admin/dray/job/")[0] == 403


def test_open_pages_are_told_of_changes_under_asgi(shop: Project) -> None:
    browser = Browser("asgi", user("vic", "view_job", is_staff=True))

    async def first_event() -> tuple[int, bytes]:
        response = await browser.client.get("/ops/jobs/events?topics=jobs")
        parts = response.streaming_content
        try:
            return response.status_code, await anext(aiter(parts))
        finally:
            await parts.aclose() if hasattr(parts, "aclose") else None

    status, part = async_to_sync(first_event)()
    assert status == 200, part
    assert part
