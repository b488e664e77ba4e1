"""``manage.py dray_worker``: `dray worker`, or with --reload `dray dev`, on the App of this project."""

from __future__ import annotations

from collections.abc import Sequence

from dray.integrations.django.management.commands import dray


class Command(dray.Command):
    help = "Runs jobs; the options are those of `dray worker`. --reload restarts it when code changes, as `dray dev`."

    def run_dray(self, words: Sequence[str]) -> None:
        if "--reload" in words:
            super().run_dray(["dev", *(word for word in words if word != "--reload")])
        else:
            super().run_dray(["worker", *words])
