"""`dray mcp` as clients start it: a process of its own, on stdin and stdout and on a port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from dray import App
from dray.integrations.mcp.sessions import MOST
from tests_integrations.mcp.agent import Answer, answer_of

DRAY = str(Path(sys.executable).with_name("dray"))
TOKEN = "correct-horse-battery"
PATIENCE = 60
TASKS = """
import dray
print("printed while it is imported")
app = dray.App({url!r})

@app.task
def add(a: int, b: int = 2) -> int:
    print("printed by a body")
    return a + b

@app.on("enqueued")
def told(job, error=None):
    print("printed by a hook")
"""
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


@pytest.fixture
def folder(tmp_path: Path, url: str) -> Path:
    """Where `dray` finds an app, on either database."""
    return with_app(tmp_path, url)


@pytest.fixture
def small_folder(tmp_path: Path, sqlite_url: str) -> Path:
    """The same, for what has nothing to do with the database."""
    return with_app(tmp_path, sqlite_url)


def with_app(folder: Path, url: str) -> Path:
    (folder / "tasks.py").write_text(TASKS.format(url=url))
    with App(url) as app:
        app.init()
    return folder


@contextmanager
def started(folder: Path, *words: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    """`dray mcp`, ended with its folder."""
    with subprocess.Popen(
        [DRAY, "mcp", *words],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


async def use(client: Client) -> list[Answer]:
    """What an agent does first: it looks around, enqueues a job and looks at it."""
    assert {"jobs", "enqueue"} <= {tool.name for tool in (await client.list_tools()).tools}
    assert "Searching for jobs" in str(await client.read_resource("dray://search"))
    made = answer_of(await client.call_tool("enqueue", {"task": "tasks.add", "args": {"a": 1}}))
    found = answer_of(await client.call_tool("status", {"job": made["job"]["id"]}))
    actions = answer_of(await client.call_tool("actions", {}))
    return [made, found, actions]


def check(answers: list[Answer], who: str) -> None:
    made, found, actions = answers
    assert made["job"] == found["job"]
    assert found["says"] == ["No worker is alive: start one with `dray worker`."]
    assert [(action["who"], action["via"], action["verb"]) for action in actions["actions"]] == [
        (who, "mcp", "enqueue")
    ]


def test_an_agent_on_stdin_and_stdout(folder: Path) -> None:
    async def run() -> list[Answer]:
        server = StdioServerParameters(command=DRAY, args=["mcp", "--write", "--as", "ann"], cwd=folder)
        async with Client(server, client_info=Implementation(name="robot", version="1")) as client:
            return await use(client)

    check(anyio.run(run), "ann (robot)")


def test_only_the_protocol_is_on_stdout_and_it_ends_with_stdin(small_folder: Path) -> None:
    call = {"name": "enqueue", "arguments": {"task": "tasks.add", "args": {"a": 1}}}
    with started(small_folder, "--write") as process:
        assert process.stdin is not None
        for message in (
            HELLO,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        ):
            process.stdin.write(json.dumps(message) + "\n")
        process.stdin.write("no JSON\n")
        process.stdin.flush()
        said = [line_of(process.stdout), line_of(process.stdout)]
        rest, errors = process.communicate(timeout=PATIENCE)  # closes stdin

    assert process.returncode == 0
    told = [json.loads(line) for line in (*said, *rest.splitlines())]
    assert {1, 2} <= {message.get("id") for message in told}
    assert all(message["jsonrpc"] == "2.0" for message in told)
    assert "printed while it is imported" in errors
    assert "printed by a hook" in errors


def test_sigterm_ends_it_though_stdin_stays_open(small_folder: Path) -> None:
    with started(small_folder) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(HELLO) + "\n")
        process.stdin.flush()
        assert json.loads(line_of(process.stdout))["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_an_agent_on_a_port_must_show_the_token_and_come_from_here(folder: Path) -> None:
    words = ("--write", "--as", "ann", "--http", "127.0.0.1:0", "--token-env", "T", "--allow-host", "mcp.example.com")
    with started(folder, *words, T=TOKEN) as process:
        assert line_of(process.stdout) == "printed while it is imported\n"  # no protocol is there
        address = line_of(process.stdout).strip()
        signed = {"authorization": f"Bearer {TOKEN}"}
        answers = anyio.run(_used, address, signed)
        statuses = {
            name: httpx.post(
                address,
                json=HELLO,
                headers={"accept": "application/json, text/event-stream", **headers},
                timeout=PATIENCE,
            )
            for name, headers in {
                "no token": {},
                "another token": {"authorization": "Bearer correct-horse-batterx"},
                "another scheme": {"authorization": f"Basic {TOKEN}"},
                "another name": {**signed, "host": "evil.example"},
                "another site": {**signed, "origin": "http://evil.example"},
                "no site": {**signed, "origin": "null"},
                "this site": {**signed, "origin": address.removesuffix("/mcp")},
                "a proxy's name": {**signed, "host": "mcp.example.com", "origin": "https://mcp.example.com"},
                "by its name": {**signed, "host": f"localhost:{httpx.URL(address).port}"},
            }.items()
        }
        large = {**signed, "content-type": "application/json"}
        huge = httpx.post(address, content=b" " * 3_000_000, headers=large, timeout=PATIENCE)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)

    check(answers, "ann (robot)")
    assert {name: found.status_code for name, found in statuses.items()} == {
        "no token": 401,
        "another token": 401,
        "another scheme": 401,
        "another name": 421,
        "another site": 403,
        "no site": 403,
        "this site": 200,
        "a proxy's name": 200,
        "by its name": 200,
    }
    assert statuses["no token"].headers["www-authenticate"] == "Bearer"
    assert huge.status_code == 413
    assert code == 0


def test_who_may_act_on_a_port_of_this_machine_must_show_the_token_that_it_printed(small_folder: Path) -> None:
    def status(address: str, headers: dict[str, str]) -> int:
        headers = {"accept": "application/json, text/event-stream", **headers}
        return httpx.post(address, json=HELLO, headers=headers, timeout=PATIENCE).status_code

    words = ("--write", "--as", "ann", "--http", "127.0.0.1:0")
    with started(small_folder, *words) as process:
        assert line_of(process.stdout) == "printed while it is imported\n"
        address, header = line_of(process.stdout).strip(), line_of(process.stdout).strip()
        assert "agents that send this header may act here; it is not shown again" in line_of(process.stderr)
        name, _, value = header.partition(": ")
        assert name == "Authorization"
        statuses = [status(address, {}), status(address, {"authorization": f"Bearer {TOKEN}"})]
        answers = anyio.run(_used, address, {"authorization": value})
        process.send_signal(signal.SIGTERM)
        rest = "".join(process.communicate(timeout=PATIENCE))
    assert statuses == [401, 401]
    check(answers, "ann (robot)")
    assert value.partition(" ")[2] not in rest

    with started(small_folder, *words, "--json") as process:  # with a token of its own
        assert line_of(process.stdout) == "printed while it is imported\n"
        told = json.loads(line_of(process.stdout))
        assert {*told} == {"url", "token"}
        signed = {"authorization": f"Bearer {told['token']}"}
        assert [status(told["url"], {"authorization": value}), status(told["url"], signed)] == [401, 200]


def test_who_may_only_look_on_a_port_of_this_machine_needs_no_token(small_folder: Path) -> None:
    async def run() -> set[str]:
        async with Client(address) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    with started(small_folder, "--http", "127.0.0.1:0") as process:
        assert line_of(process.stdout) == "printed while it is imported\n"
        address = line_of(process.stdout).strip()
        tools = anyio.run(run)

    assert "jobs" in tools
    assert "enqueue" not in tools


def test_a_new_session_takes_the_place_of_the_one_that_was_idle_longest(small_folder: Path) -> None:
    """Agents that never end theirs keep nobody out."""
    with started(small_folder, "--http", "127.0.0.1:0") as process:
        assert line_of(process.stdout) == "printed while it is imported\n"
        address = line_of(process.stdout).strip()
        with httpx.Client(headers={"accept": "application/json, text/event-stream"}, timeout=PATIENCE) as http:

            def opened() -> str:
                made = http.post(address, json=HELLO)
                assert made.status_code == 200, made.text
                return made.headers["mcp-session-id"]

            def status(session: str) -> int:
                ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
                return http.post(address, json=ping, headers={"mcp-session-id": session}).status_code

            first, second, third = opened(), opened(), opened()
            with http.stream("GET", address, headers={"mcp-session-id": second}) as listening:
                assert listening.status_code == 200  # it is not idle, although it asks nothing
                assert status(first) == 200
                ended = [opened() for _ in range(3)]
                for each in ended:  # these make room by themselves
                    assert http.delete(address, headers={"mcp-session-id": each}).status_code == 200
                others = [opened() for _ in range(MOST - 3)]
                assert status(third) == 200

                others += [opened(), opened()]
                assert [status(each) for each in (second, third, others[-1])] == [200, 200, 200]
                assert [status(each) for each in (first, others[0], others[1])] == [404, 404, 200]


async def _used(address: str, headers: dict[str, str]) -> list[Answer]:
    async with httpx_client(headers) as http:
        client = Client(streamable_http_client(address, http_client=http))
        client.client_info = Implementation(name="robot", version="1")
        async with client:
            return await use(client)


def httpx_client(headers: dict[str, str]) -> Any:
    """The client of the SDK's own HTTP library."""
    import httpx2

    return httpx2.AsyncClient(headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (["--http", "0.0.0.0:0"], {}, "0.0.0.0 can be reached from other machines, so agents must send a token"),
        (["--http", "127.0.0.1:0"], {"DRAY_MCP_TOKEN": "short"}, "the token in DRAY_MCP_TOKEN is too short"),
        (["--http", "127.0.0.1:0"], {"DRAY_MCP_TOKEN": "é" * 20}, "cannot be sent in a header"),
        (["--http", "127.0.0.1:0", "--token-env", "NONE"], {}, "NONE, which --token-env names, is not set"),
        (["--http", "here"], {}, "'here' is no address"),
        (["--token-env", "T"], {"T": TOKEN}, "go with --http"),
        (["--as", " "], {}, "--as is empty"),
    ],
)
def test_a_server_that_would_not_be_safe_does_not_start(
    tmp_path: Path, words: list[str], variables: dict[str, str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from dray.cli.run import run

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        for name, value in variables.items():
            patched.setenv(name, value)
        code = run(["mcp", "--url", f"sqlite:///{tmp_path}/jobs.db", *words])
    out, errors = capfd.readouterr()
    assert (code, out) == (2, "")
    assert told in errors
    assert errors.count("\n") == 1
