"""An MCP server for agents: `dray mcp`, and `server(app)` to serve it yourself.

Names are loaded when they are first used, and the SDK of the extra `mcp` with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.integrations.mcp.over_http import serve_http as serve_http
    from dray.integrations.mcp.over_stdio import serve_stdio as serve_stdio
    from dray.integrations.mcp.serving import server as server

__getattr__ = loader(
    "dray.integrations.mcp",
    {
        "dray.integrations.mcp.over_http": "serve_http",
        "dray.integrations.mcp.over_stdio": "serve_stdio",
        "dray.integrations.mcp.serving": "server",
    },
)
