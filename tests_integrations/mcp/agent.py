"""An agent: the SDK's own client, connected in process to the server of an App."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

import anyio
from mcp import Client
from mcp_types import CallToolResult, Implementation, TextContent, TextResourceContents, Tool

from dray import App
from dray.integrations import mcp

T = TypeVar("T")


class Answer(NamedTuple):
    text: str
    shape: dict[str, Any]  # empty for an error
    is_error: bool

    def __getitem__(self, key: Any) -> Any:
        return self.shape[key]


def answer_of(result: Any) -> Answer:
    result = cast("CallToolResult", result)
    (content,) = result.content
    assert isinstance(content, TextContent)
    if not result.is_error:
        assert json.loads(content.text) == result.structured_content  # programs and models read the same
    return Answer(content.text, result.structured_content or {}, bool(result.is_error))


class Agent:
    """`mode`: how the protocol's version is agreed on, as the SDK's client has it."""

    def __init__(
        self, app: App, *, write: bool = False, who: str = "ann", client: str = "robot", mode: str = "auto"
    ) -> None:
        self.server = mcp.server(app, who=who, write=write)
        self._client = client
        self._mode = mode

    def tools(self) -> dict[str, Tool]:
        return self._with(self._tools)

    async def _tools(self, client: Client) -> dict[str, Tool]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    def try_(self, tool: str, **arguments: Any) -> Answer:
        async def call(client: Client) -> Answer:
            return answer_of(await client.call_tool(tool, arguments))

        return self._with(call)

    def ask(self, tool: str, **arguments: Any) -> Answer:
        """As `try_`, and it must be well."""
        found = self.try_(tool, **arguments)
        assert not found.is_error, found.text
        return found

    def refused(self, tool: str, **arguments: Any) -> str:
        """The words of a refusal."""
        found = self.try_(tool, **arguments)
        assert found.is_error, found.text
        return found.text

    def read(self, address: str) -> str:
        async def call(client: Client) -> str:
            (content,) = (await client.read_resource(address)).contents
            assert isinstance(content, TextResourceContents)
            return content.text

        return self._with(call)

    def _with(self, act: Callable[[Client], Awaitable[T]]) -> T:
        async def run() -> T:
            info = Implementation(name=self._client, version="1")
            async with Client(self.server, client_info=info, mode=self._mode) as client:
                return await act(client)

        return anyio.run(run)
