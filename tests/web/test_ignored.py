"""What users wrote is where htmx looks for nothing: should it ever be markup, its attributes would do nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dray import Access, App, dashboard
from dray.web import pages
from dray.web.show import in_path
from tests.web import hostile
from tests.web.browsing import Visitor

MARK = "alert(1)"
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class _Reader(HTMLParser):
    """Finds text of users in a page's main part that is not inside of `hx-ignore`."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.found = 0
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append((tag, any(name == "hx-ignore" for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if MARK in data and "main" in tags:
            self.found += 1
            if not any(is_ignored for _, is_ignored in self.open):
                self.outside.append(" > ".join(tags[-4:]))


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    """All lists, and the page of each thing with a hostile name, in a database that has them."""
    path = tmp_path / "jobs.db"
    with App(f"sqlite:///{path}") as app:
        app.enqueue("mail", {})
    found = hostile.plant(path)[:2]
    names = [in_path(hostile.SHORT[name]) for name in ("script", "htmx")]
    found += [f"/{noun}/{name}" for noun in ("queues", "schedules", "tasks") for name in names]
    with closing(sqlite3.connect(path)) as connection:
        for noun, table in (("workers", "dray_workers"), ("workflows", "dray_workflows")):
            rows = connection.execute(f"SELECT id FROM {table} WHERE name LIKE '%{MARK}%' LIMIT 2")
            found += [f"/{noun}/{row[0]}" for row in rows]
        keys = connection.execute("SELECT error_key FROM dray_jobs WHERE error_key IS NOT NULL LIMIT 2")
        found += [f"/failures/{row[0]}" for row in keys]
    return [*(page.path for page in pages.PAGES if "{" not in page.path), *found]


def test_what_users_wrote_is_ignored_by_htmx(tmp_path: Path, addresses: list[str]) -> None:
    outside, seen = dict[str, list[str]](), set[str]()
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        visitor = Visitor(dashboard(app, access=lambda _: "admin"), Access("admin"))
        for address in addresses:
            answer = visitor.client.get(address)
            if answer.headers.get("content-type", "").startswith("text/html"):
                reader = _Reader()
                reader.feed(answer.text)
                seen |= {address.split("/")[1]} if reader.found else set()
                outside |= {address[:60]: reader.outside} if reader.outside else {}

    assert outside == {}
    assert seen >= {"jobs", "failures", "queues", "schedules", "tasks", "workers", "workflows", "actions"}
