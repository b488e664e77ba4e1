"""What clients can read beside the tools: the tasks with their JSON Schemas, and the grammar of searches."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from dray.app_interface import AppInterface
from dray.errors import UnknownTask
from dray.ops import tasks as shapes
from dray.task.task import Task

_GRAMMAR = Path(__file__).with_name("search.md")  # as docs/reference/search.md has it
_TASKS = 500  # in the list
_DOC_CHARS = 4_000


def add_resources(server: MCPServer[Any], core: AppInterface) -> None:
    @server.resource("dray://search", title="The grammar of searches", mime_type="text/markdown")
    def search() -> str:
        """Every filter that `search`, `retry_all` and `cancel_all` take."""
        return _GRAMMAR.read_text(encoding="utf-8")

    @server.resource("dray://tasks", title="The tasks", mime_type="application/json")
    def tasks() -> str:
        """The tasks that are known here: their names, what they say of themselves, and where the rest is."""
        known = sorted(core.registry, key=lambda task: task.name)
        found = [
            {"name": each["name"], "description": each["description"], "resource": _address(each["name"])}
            for each in shapes.tasks(known[:_TASKS], None)
        ]
        return json.dumps({"tasks": found, "left_out": max(0, len(known) - _TASKS)})

    @server.resource("dray://tasks/{name}", title="One task", mime_type="application/json")
    def task(name: str) -> str:
        """A task: its options, its docstring, and the JSON Schema of its arguments."""
        try:
            return json.dumps(_whole(core.registry.get(name)))
        except UnknownTask:
            raise ResourceNotFoundError(f"{core.registry.missing(name)} dray://tasks lists those that are") from None


def _address(task: str) -> str:
    return f"dray://tasks/{quote(task, safe='')}"


def _whole(task: Task[..., Any]) -> dict[str, Any]:
    doc = inspect.getdoc(task.function) or None
    return {
        **shapes.tasks([task], None)[0],
        "doc": doc if doc is None else doc[:_DOC_CHARS],
        "schema": shapes.argument_schema(task),
    }
