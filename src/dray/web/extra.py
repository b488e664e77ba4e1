"""The packages of the extra `web`, and what to say where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

MISSING = "the dashboard needs packages that are not installed here: pip install 'dray[web]'"


def is_installed() -> bool:
    return all(find_spec(name) is not None for name in ("starlette", "jinja2", "uvicorn", "a2wsgi"))
