"""``dray web``: real processes, asked over real connections."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.cli.session import CTRL_C, session
from tests.cli.shell import PATIENCE, Shell, until
from tests.forks import Forked

TOKEN = "correct horse battery"


class Answer(NamedTuple):
    status: int
    cookie: str
    text: str


@dataclass
class Browser:
    """Asks one server, with the cookie that it was given."""

    port: int
    cookie: str = ""

    @classmethod
    def by(cls, link: str) -> Browser:
        """One that has opened a link."""
        made = cls(int(urlsplit(link).port or 80))
        answer = made.ask("GET", link.partition(f":{made.port}")[2])
        assert answer.status == 303, answer
        made.cookie = answer.cookie
        return made

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body or None, {"cookie": self.cookie, **headers})
            with connection.getresponse() as answer:
                cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
                return Answer(answer.status, cookie, answer.read().decode())

    def page(self, path: str) -> str:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.status
        return answer.text

    @contextmanager
    def stream(self) -> Generator[http.client.HTTPResponse]:
        """The stream of events, which has begun."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/events", None, {"cookie": self.cookie})
            with connection.getresponse() as answer:
                assert answer.status == 200
                assert answer.readline()
                yield answer


@contextmanager
def serving(shell: Shell, *words: str, **environment: str | None) -> Generator[tuple[Forked, str]]:
    """A server on a free port, and the first line that it wrote."""
    with shell.background("web", "--port", "0", *words, **environment) as process:  # pyright: ignore[reportArgumentType]
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, process.stderr and process.stderr.read()
        yield process, line


def test_the_link_leads_to_the_jobs(shell: Shell) -> None:
    shell("enqueue", "tasks.mail", "to=ann", "token=s3cret")

    with serving(shell) as (process, link):
        browser = Browser.by(link)
        page = browser.page("/queues")
        assert "mail" in page
        assert "s3cret" not in page

        token = re.findall(r'name="token" value="(\w+)"', page)[0]
        form = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://127.0.0.1:{browser.port}"}
        assert browser.ask("POST", "/queues/mail/pause", f"token={token}", **form).status == 303
        assert browser.ask("POST", "/queues/mail/pause", f"token={token}", **{**form, "origin": "null"}).status == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0

    assert shell("queues", "--json").json[0]["paused_at"] is not None


def test_the_overview_is_there_soon_after_the_start(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell("enqueue", "tasks.mail", "to=ann", "token=s3cret")
    began = time.monotonic()

    # Not a fork of this process: the interpreter and all that is imported are part of the start.
    with subprocess.Popen(
        shell.command("web", "--port", "0"),
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "Overview" in Browser.by(process.stdout.readline().strip()).page("/")
            took = time.monotonic() - began
        finally:
            process.kill()

    with capsys.disabled():
        print(f"\ndray web showed the overview after {took:.2f} s")
    assert took < 20, "2 s is the aim, on a machine that does nothing else"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_although_streams_are_open(
    local: Shell, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    local("db", "init")
    with serving(local) as (process, link):
        browser = Browser.by(link)
        with browser.stream() as one, browser.stream() as other:
            told = time.monotonic()
            process.send_signal(number)
            assert process.wait(PATIENCE) == 0
            took = time.monotonic() - told
            for stream in (one, other):
                stream.read()  # raises if it was cut off

    with capsys.disabled():
        print(f"\ndray web ended {took:.2f} s after {number.name}")
    assert took < 4, "it takes 0.7 s; with the streams left open, uvicorn would wait for ever"


def test_ctrl_c_on_a_terminal_ends_it_without_a_word(local: Shell) -> None:
    local("db", "init")
    with session(local, "web", "--port", "0") as terminal:
        terminal.sees("Ctrl-C ends this")
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    assert "Traceback" not in terminal.text


def test_read_only_shows_and_takes_no_action(local: Shell) -> None:
    local("enqueue", "tasks.mail", "to=ann", "token=x")
    with serving(local, "--read-only") as (_, link):
        page = Browser.by(link).page("/queues")

    assert "mail" in page
    assert 'method="post"' not in page
    assert "viewer" in page


def test_json_names_the_link(local: Shell) -> None:
    local("db", "init")
    with serving(local, "--json") as (_, line):
        assert Browser.by(json.loads(line)["url"]).cookie


def test_what_the_access_log_of_others_would_show_is_not_logged(local: Shell) -> None:
    local("db", "init")
    with serving(local, "--log-level", "debug") as (process, link):
        Browser.by(link)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        assert process.stderr is not None
        assert "code=" not in process.stderr.read()


def test_another_address_than_this_machine_needs_a_token(local: Shell) -> None:
    local("db", "init")

    refused = local.try_("web", "--host", "0.0.0.0", "--port", "0")
    short = local.try_("web", "--host", "0.0.0.0", "--port", "0", DRAY_WEB_TOKEN="secret")
    unset = local.try_("web", "--token-env", "NO_SUCH_VARIABLE", "--port", "0")

    assert (refused.code, short.code, unset.code) == (2, 2, 2)
    assert "set DRAY_WEB_TOKEN to a token of 16 characters or more" in refused.err
    assert "at least 16 characters" in short.err
    assert "NO_SUCH_VARIABLE" in unset.err


@pytest.mark.parametrize("variable", ["DRAY_WEB_TOKEN", "OTHER"])
def test_with_a_token_it_serves_every_address_and_prints_no_link(local: Shell, variable: str) -> None:
    local("db", "init")
    named = [] if variable == "DRAY_WEB_TOKEN" else ["--token-env", variable]
    with serving(local, "--host", "0.0.0.0", *named, **{variable: TOKEN}) as (process, line):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", line)
        browser = Browser(int(line.rpartition(":")[2]))
        form = {"content-type": "application/x-www-form-urlencoded", "origin": line}
        assert browser.ask("POST", "/login", "token=wrong", **form).status == 403
        entered = browser.ask("POST", "/login", f"token={TOKEN.replace(' ', '+')}", **form)
        assert entered.status == 303
        browser.cookie = entered.cookie
        assert "Queues" in browser.page("/queues")
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        assert process.stderr is not None
        assert TOKEN not in process.stderr.read()


@pytest.mark.parametrize(("proxies", "last"), [({}, 429), ({"FORWARDED_ALLOW_IPS": "127.0.0.1"}, 403)])
def test_guesses_are_counted_by_the_real_address_unless_a_proxy_is_named(
    local: Shell, proxies: dict[str, str], last: int
) -> None:
    local("db", "init")
    with serving(local, DRAY_WEB_TOKEN=TOKEN, **proxies) as (_, line):
        browser = Browser(urlsplit(line).port or 80)
        form = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://127.0.0.1:{browser.port}"}
        statuses = [
            browser.ask("POST", "/login", "token=wrong", **form, **{"x-forwarded-for": f"192.0.2.{n}"}).status
            for n in range(6)
        ]

    assert statuses == [403] * 5 + [last]


def test_names_of_other_hosts_are_refused_unless_they_are_allowed(local: Shell) -> None:
    local("db", "init")
    with serving(local, "--allow-host", "jobs.example.com") as (_, link):
        browser = Browser.by(link)
        statuses = {
            host: browser.ask("GET", "/queues", host=host).status
            for host in ("evil.example", "jobs.example.com", f"localhost:{browser.port}")
        }

    assert statuses == {"evil.example": 421, "jobs.example.com": 200, f"localhost:{browser.port}": 200}


def test_a_port_in_use_is_one_sentence(local: Shell) -> None:
    local("db", "init")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = local.try_("web", "--port", str(port))

    assert done.code == 1
    assert done.err.startswith(f"dray: the dashboard cannot be served on 127.0.0.1:{port}: address already in use; ")
    assert len(done.err.splitlines()) == 1


def test_a_host_that_is_none_is_one_sentence(local: Shell) -> None:
    local("db", "init")

    done = local.try_("web", "--host", "nowhere.invalid")

    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "nowhere.invalid" in done.err


def test_a_database_that_is_not_there_is_not_made(local: Shell) -> None:
    done = local.try_("web", "--port", "0")

    assert done.code == 6
    assert not (local.folder / "dray.db").exists()


def test_without_the_extra_it_says_what_to_install(local: Shell) -> None:
    without = local.folder.parent / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text("import sys; sys.modules['uvicorn'] = sys.modules['starlette'] = None")
    local("db", "init")

    done = local.fresh("web", PYTHONPATH=str(without))

    assert done.code == 1
    assert done.err == ("dray: the dashboard needs packages that are not installed here: pip install 'dray[web]'\n")


# Beside `dray dev`


def link_in(text: str) -> str:
    return re.findall(r"dashboard (http://\S+)", text)[-1]


def test_dev_serves_it_and_a_reload_signs_nobody_out(shell: Shell) -> None:
    with session(shell, "dev") as terminal:
        terminal.sees("dashboard http://127.0.0.1:")
        link = link_in(terminal.text)
        browser = Browser.by(link)
        shell("enqueue", "tasks.add", "a=1", "b=2", "--wait")
        assert "default" in browser.page("/queues")

        path = shell.folder / "tasks.py"
        shell.write("tasks.py", path.read_text() + "\n")
        terminal.sees("reloaded: tasks.py changed")
        assert until(lambda: _served(browser)) == 200
        again = browser.port, Browser(browser.port).ask("GET", link.partition(str(browser.port))[2]).status
        assert again == (browser.port, 403), "the link was used by the process before"
        terminal.press(CTRL_C)
        assert terminal.ended() == 0


def _served(browser: Browser) -> int | None:
    try:
        return browser.ask("GET", "/queues").status
    except ConnectionError:
        return None


def test_the_link_of_dev_works_after_a_reload_unless_it_was_used(local: Shell, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with session(local, "dev", TMPDIR=str(own)) as terminal:
        terminal.sees("dashboard http://127.0.0.1:")
        link = link_in(terminal.text)
        assert len(list(own.iterdir())) == 1
        local.write("tasks.py", (local.folder / "tasks.py").read_text() + "\n")
        terminal.sees("reloaded: tasks.py changed")
        terminal.sees("dashboard http://127.0.0.1:", 2)

        assert link_in(terminal.text) == link
        assert Browser.by(link).cookie
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    assert list(own.iterdir()) == []


def test_dev_goes_on_without_the_dashboard(local: Shell) -> None:
    with session(local, "dev", "--no-web", "--no-reload") as terminal:
        local("enqueue", "tasks.add", "a=1", "b=2", "--wait")
        assert "dashboard" not in terminal.text
        terminal.press(CTRL_C)
        assert terminal.ended() == 0
