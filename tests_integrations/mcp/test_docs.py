"""docs/how-to/mcp.md: its settings start the command, and its program runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from click import Context

from dray import App
from dray.cli.commands.mcp import mcp
from tests_integrations.mcp.agent import Agent
from tests_integrations.mcp.test_transports import with_app

PAGE = (Path(__file__).parents[2] / "docs/how-to/mcp.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_settings_of_clients_are_command_lines_of_dray() -> None:
    settings: list[dict[str, Any]] = [*map(json.loads, blocks("json")), *map(tomllib.loads, blocks("toml"))]
    servers = [server for setting in settings for kind in setting.values() for server in kind.values()]
    assert len(servers) == 3
    for server in servers:
        assert server["command"].endswith("/.venv/bin/dray")
        name, *words = server["args"]
        assert name == "mcp"
        assert isinstance(mcp.make_context(name, words, auto_envvar_prefix="DRAY_MCP"), Context)


def test_the_commands_of_the_page_are_command_lines_of_dray() -> None:
    typed = re.findall(r"^\$ .*\bdray mcp\b(.*)$", PAGE, re.M)
    assert len(typed) == 4
    for words in typed:
        assert isinstance(mcp.make_context("mcp", words.split(), auto_envvar_prefix="DRAY_MCP"), Context)


def test_the_program_of_the_page_runs(tmp_path: Path, sqlite_url: str) -> None:
    folder = with_app(tmp_path, sqlite_url)
    (folder / "agent.py").write_text(next(block for block in blocks("python") if "StdioServerParameters" in block))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path}
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['No worker is alive: start one with `dray worker`.']\n", done.stderr


def test_every_tool_is_on_the_page(app: App) -> None:
    assert not [name for name in Agent(app, write=True).tools() if f"`{name}`" not in PAGE]
