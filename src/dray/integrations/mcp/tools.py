"""A function as a tool: its arguments checked, its errors told with what to do next."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import ValidationError

from dray.errors import (
    DrayError,
    SchemaMissing,
    StorageError,
    UnknownJob,
    UnknownSchedule,
    UnknownTask,
    UnknownWorkflow,
)
from dray.sanitize import redact
from dray.wording import listed

# What to do next, by the kind of error; the first match counts.
_NEXT = (
    (UnknownJob, "find it with `jobs` or `search`"),
    (UnknownTask, "`tasks` lists those that are known"),
    (UnknownSchedule, "`schedules` lists them"),
    (UnknownWorkflow, "`workflows` lists them"),
    ((SchemaMissing, StorageError), "see what `doctor` says, and look at the queue before you repeat a change"),
)

READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)  # the second and third for clients that do not look at the first


def acts(*, destroys: bool, is_idempotent: bool, runs_jobs: bool = False) -> ToolAnnotations:
    """`runs_jobs`: whose code may reach anything."""
    return ToolAnnotations(
        read_only_hint=False, destructive_hint=destroys, idempotent_hint=is_idempotent, open_world_hint=runs_jobs
    )


class CheckedTool(Tool):
    """Refuses arguments that it does not have: a misspelled one must not be taken for its default."""

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:  # noqa: FBT001, FBT002 - the SDK's signature
        known = list(self.parameters["properties"])
        unknown = [name for name in arguments if name not in known]
        if unknown:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ToolError(f"{self.name} has no argument {listed(unknown)}; {takes}")
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{self.name}: {_problems(error.__cause__)}") from error.__cause__
            raise


def tool(function: Callable[..., CallToolResult], hints: ToolAnnotations) -> Tool:
    made = CheckedTool.from_function(_telling(function), annotations=hints, structured_output=False)
    made.description = " ".join(made.description.split())
    made.parameters["additionalProperties"] = False
    return made


def told(error: DrayError) -> str:
    """An error, with what to do next."""
    more = next((words for kinds, words in _NEXT if isinstance(error, kinds)), None)
    return redact(str(error) if more is None else f"{error}; {more}")


def _telling(function: Callable[..., CallToolResult]) -> Callable[..., CallToolResult]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> CallToolResult:
        try:
            return function(*args, **kwargs)
        except DrayError as error:
            raise ToolError(told(error)) from error

    return call


def _problems(error: ValidationError) -> str:
    found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
    return "; ".join(found[:5])
