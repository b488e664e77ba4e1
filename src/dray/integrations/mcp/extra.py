"""The package of the extra `mcp`, and what to say where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

MISSING = "the MCP server needs a package that is not installed here: pip install 'dray[mcp]'"


def is_installed() -> bool:
    return all(find_spec(name) is not None for name in ("mcp", "mcp_types"))  # before 2.0 it lacks the second
