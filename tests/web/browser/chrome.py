"""A real browser and a real server: Debian's chromium through playwright, uvicorn on a thread."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from dray import Access, App, dashboard
from dray.web.dashboard import Dashboard

# Without windows it takes half the time.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 20.0
_FILES = (".csv", ".jsonl", "/args", "/result", "/log")
Theme = Literal["light", "dark"]
_AXE = (Path(__file__).parent / "axe.min.js").read_text()

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: `make test` installs it as root (apt-get install chromium-headless-shell)"
)


class Served:
    """A dashboard at an address of its own."""

    def __init__(self, url: str, site: Dashboard) -> None:
        self.url = url
        self.dashboard = site


def served(app: App, role: Any = "admin") -> AbstractContextManager[Served]:
    """What `dray web` shows, to visitors who need no link."""
    return serving(dashboard(app, access=lambda _: Access(role, "ann")))


@contextmanager
def serving(site: Dashboard) -> Generator[Served]:
    server = uvicorn.Server(uvicorn.Config(site, port=0, log_level="warning", lifespan="off"))
    socket = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],), name="test-uvicorn")
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{socket.getsockname()[1]}", site)
    finally:
        site.site.close()
        server.should_exit = True
        thread.join(PATIENCE)
        socket.close()
        assert not thread.is_alive()


@contextmanager
def launched() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Visitor:
    """A browser window, and all that must never happen in it."""

    def __init__(self, browser: Browser, served: Served, width: int = 1440, **options: Any) -> None:
        self.served = served
        self.expected: set[int] = set()  # statuses that the browser may complain of
        self.wrong: list[str] = []  # errors in the console, violations of the policy, requests to others, dialogs
        given: dict[str, Any] = {"reduced_motion": "reduce", **options}
        self.context: BrowserContext = browser.new_context(
            base_url=served.url, viewport={"width": width, "height": 900}, **given
        )
        self.context.set_default_timeout(PATIENCE * 1000)
        self.context.on("console", self._hear)
        self.context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))
        self.context.on("request", self._see)
        self.context.on("dialog", self._dismiss)

    def _hear(self, message: Any) -> None:
        # Tests of the network, beside this one, plug cables into this machine: browsers then drop their connections.
        is_of_another_test = "net::ERR_NETWORK_CHANGED" in message.text
        is_expected = any(f"responded with a status of {status} " in message.text for status in self.expected)
        if message.type in {"error", "warning"} and not is_of_another_test and not is_expected:
            self.wrong.append(f"{message.type}: {message.text}")

    def _see(self, request: Any) -> None:
        if urlsplit(request.url).netloc not in {urlsplit(self.served.url).netloc, ""}:
            self.wrong.append(f"request: {request.url}")

    def _dismiss(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        self.go(page, path)
        return page

    def go(self, page: Page, path: str, status: int = 200) -> None:
        answer = page.goto(path, wait_until="load")
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status}"

    def checks_accessibility(self) -> None:
        """Has axe in every page that is opened from now on. Not as an element: the policy would refuse it."""
        self.context.add_init_script(_AXE)

    def close(self) -> None:
        self.context.close()


def pages_of(paths: list[str]) -> list[str]:
    """Those of the paths that are pages, and not files to be saved. Beside them /bulk, which is none by itself."""
    return [path for path in paths if path != "/bulk" and not path.endswith(_FILES)]


def violations(page: Page, only: Sequence[str] = (), but: Sequence[str] = ()) -> list[str]:
    """What axe finds in a whole page, each with its places, by these rules or by all but these."""
    rules = {rule: {"enabled": False} for rule in but}
    options: dict[str, Any] = {"resultTypes": ["violations"], "iframes": False, "rules": rules}
    # One rule alone reads the style sheets (css-orientation-lock): they are not fetched again for another theme.
    options["preload"] = not only and not but
    if only:
        options["runOnly"] = {"type": "rule", "values": list(only)}
    found = page.evaluate("options => axe.run('html', options)", options)
    return [
        f"{each['id']}: {each['help']}: " + "; ".join(node["html"][:160] for node in each["nodes"][:3])
        for each in found["violations"]
    ]


def overflow(page: Page) -> list[str]:
    """What is wider than the window, where the page would scroll sideways."""
    return page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            const found = [...document.querySelectorAll("body *")].filter(
                e => e.getBoundingClientRect().right > width + 1
                    && !e.parentElement.closest(".scroll, pre, .tabs, .side .in"));
            const shown = found.slice(0, 5).map(e => e.outerHTML.slice(0, 120));
            return [`${document.documentElement.scrollWidth} px`, ...shown];
        }"""
    )
