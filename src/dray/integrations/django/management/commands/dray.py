"""``manage.py dray …``: every command of `dray`, on the App of this project."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand

APP = "dray.integrations.django:app"
_DJANGOS = ("--settings", "--pythonpath")  # manage.py has obeyed them already


class Command(BaseCommand):
    help = "Runs a command of dray on this project: manage.py dray jobs, why, top, doctor, web …"

    def run_from_argv(self, argv: list[str]) -> None:
        """Leaves all words to `dray`, which knows its own options."""
        self.run_dray(_without_djangos(argv[2:]))

    def run_dray(self, words: Sequence[str]) -> None:
        """In this process, as ``python -m dray`` would; ends it with its exit code."""
        os.environ.setdefault("DRAY_APP", APP)
        sys.argv = ["dray", *words]
        runpy.run_module("dray", run_name="__main__")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's own options
        self.run_dray(args)


def _without_djangos(words: Sequence[str]) -> list[str]:
    left, given = [], iter(words)
    for word in given:
        if word in _DJANGOS:
            next(given, None)
        elif not word.startswith(tuple(f"{each}=" for each in _DJANGOS)):
            left.append(word)
    return left
