"""Dray behind Django's tasks: ``TASKS = {"default": {"BACKEND": "dray.integrations.django.DrayBackend"}}``.

`backend.py` is what Django calls; `core.py` has the Apps behind it, one for each alias of TASKS; `joining.py` decides
whether a call happens in the open transaction. ``dray.integrations.django:app`` is the App for ``dray --app``.
"""

from __future__ import annotations

from typing import Any

try:
    import django.tasks  # noqa: F401 - asked for here, so that its lack is told in a sentence
except ModuleNotFoundError as error:
    missing = "dray.integrations.django needs Django 6.0 or newer: pip install 'dray[django]'"
    raise ModuleNotFoundError(missing, name=error.name) from None

from dray.integrations.django.backend import DrayBackend, DrayTask
from dray.integrations.django.core import backends

__all__ = ["DrayBackend", "DrayTask", "app", "backends"]  # pyright: ignore[reportUnsupportedDunderAll] - see below


def __getattr__(name: str) -> Any:
    """`app`: that of the alias "default", or of the only DrayBackend in TASKS. It sets Django up if need be."""
    if name == "app":
        return backends.only()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
