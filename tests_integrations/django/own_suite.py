"""Runs Django's own tests of tasks against Dray's backend, in a process of its own: `own_suite.py FOLDER DATABASES`.

FOLDER is an sdist of Django, unpacked; DATABASES is JSON. The two backends that the tests are written for are
replaced by Dray's, each with what such a test asks of it: one keeps results, the other runs jobs where they
are enqueued. Prints JSON: how many ran, and the ids of those that failed or were skipped.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any


def main(folder: str, databases: str) -> None:
    sys.path[:0] = [str(Path(folder, "tests")), folder]
    import django
    from django.conf import settings

    assert Path(django.__file__).is_relative_to(folder)
    settings.configure(
        DATABASES=json.loads(databases),
        INSTALLED_APPS=["dray.integrations.django"],
        SECRET_KEY="x",
        USE_TZ=True,
        TASKS={"default": {"BACKEND": "dray.integrations.django.DrayBackend", "QUEUES": []}},
    )
    django.setup()
    _replace_backends()
    from django.test.runner import DiscoverRunner

    from dray.integrations.django import backends

    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    before = runner.setup_databases()
    with Path(os.devnull).open("w") as nowhere:
        suite = unittest.defaultTestLoader.discover(f"{folder}/tests/tasks", top_level_dir=f"{folder}/tests")
        result = unittest.TextTestRunner(nowhere).run(suite)
    backends.close()
    runner.teardown_databases(before)
    failed = {each[0].id().split()[0]: each[1][-2000:] for each in (*result.failures, *result.errors)}
    failed = {name.partition(" ")[0]: text for name, text in failed.items()}
    skipped = [each[0].id() for each in result.skipped]
    print(json.dumps({"ran": result.testsRun, "failed": failed, "skipped": skipped, "version": django.VERSION[:2]}))


def _replace_backends() -> None:
    from django.tasks.backends import dummy, immediate

    from dray.integrations.django import DrayBackend
    from dray.testing import drain

    class Keeping(DrayBackend):
        @property
        def results(self) -> list[Any]:
            return [self.get_result(job.id) for job in reversed(self.app.jobs())]

        def clear(self) -> None:
            for job in self.app.jobs():
                job.delete()

    class Running(DrayBackend):
        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            try:
                drain(self.app)
            except KeyboardInterrupt:
                self.app.cancel(result.id)  # else the next drain runs it again
                raise
            result.refresh()
            return result

    dummy.DummyBackend = Keeping  # type: ignore[misc]
    immediate.ImmediateBackend = Running  # type: ignore[misc]


if __name__ == "__main__":
    main(*sys.argv[1:])
