"""The server: its tools and resources, for an App."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer

from dray import __version__
from dray.app import App
from dray.app_interface import core_of
from dray.integrations.mcp.reading import Reading
from dray.integrations.mcp.resources import add_resources
from dray.integrations.mcp.results import UNTRUSTED
from dray.integrations.mcp.tools import READS, tool
from dray.integrations.mcp.writing import Writing
from dray.ops.doctor.check import Code
from dray.web.hiding import hiding

_WHAT = (
    "Dray is a durable job queue in a database. Begin with `stats`, which says what needs attention, or with "
    "`doctor`. `search` finds jobs, `why` explains one, `job` shows its attempts and tracebacks. Lists return "
    "`next`: pass it as `after` to read on. "
)
_MAY = {
    False: "This server only looks: to change anything, a person must start it with `dray mcp --write`. ",
    True: (
        "Tools that act leave a row in `actions`, with the name of a person: use them for what that person has asked "
        "for. This server runs no jobs; workers do. "
    ),
}


def server(app: App, *, who: str, write: bool = False, code: Code | None = None) -> MCPServer[Any]:
    """The MCP server of an App. `who`: the person for whom agents act; `write`: whether they may.

    `code`: the app as the doctor is to see it.
    """
    core = hiding(core_of(app))
    reading = Reading(core, code or Code("this process", core.registry.names()))
    tools = [tool(each, READS) for each in reading.tools]
    if write:
        tools += [tool(each, hints) for each, hints in Writing(core, who).tools]
    made = MCPServer[Any](
        "dray", title="Dray", version=__version__, instructions=_WHAT + _MAY[write] + UNTRUSTED, tools=tools
    )
    add_resources(made, core)
    return made
