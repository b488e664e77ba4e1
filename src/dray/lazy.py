"""Packages whose names are loaded when they are first used: who needs one of them does not pay for the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package. ``places``: the names that are found in each module, with spaces between."""
    modules = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
