"""Frameworks are loaded by what integrates them, and by nothing else."""

from __future__ import annotations

import subprocess
import sys

FRAMEWORKS = (
    "asyncpg",
    "django",
    "fastapi",
    "flask",
    "mcp",
    "opentelemetry",
    "psycopg2",
    "sentry_sdk",
    "starlette",
    "structlog",
)


def test_dray_loads_no_framework() -> None:
    code = f"import sys, dray; dray.App; print([name for name in {FRAMEWORKS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_integration_without_its_framework_says_what_to_install() -> None:
    code = """
import importlib, sys
lacking = {"django": "django.tasks", "fastapi": "fastapi", "flask": "flask", "otel": "opentelemetry"}
sys.modules |= dict.fromkeys(lacking.values())
for name in lacking:
    try:
        importlib.import_module(f"dray.integrations.{name}")
    except ModuleNotFoundError as error:
        assert f"pip install 'dray[{name}]'" in str(error), error
        print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["django", "fastapi", "flask", "otel"]
