"""The Context of a plain call: `send("ann")` runs here and now, without a job, a worker or a database."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from dray.errors import ConfigError
from dray.runtime.context import Context


class LocalContext(Context):
    """What a body sees when it is called as a function: the only attempt of a job that is not stored."""

    def __init__(self, task: str, job_id: str) -> None:
        self._task = task
        self._job_id = job_id

    def __repr__(self) -> str:
        return f"<Context of a plain call of {self._task}>"

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def attempt(self) -> int:
        return 1

    @property
    def max_attempts(self) -> int:
        return 1

    @property
    def idempotency_key(self) -> str:
        return self._job_id

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"dray.task.{self._task}")

    @property
    def schedule(self) -> str | None:
        return None

    @property
    def slot(self) -> datetime | None:
        return None

    def progress(self, percent: float | None, message: str | None = None) -> None:
        self.log.debug("%s %s", percent, message)

    @property
    def cancelled(self) -> bool:
        return False

    def raise_if_cancelled(self) -> None:
        """Does nothing: a plain call cannot be cancelled."""

    @property
    def parent_results(self) -> Mapping[str, Any]:
        return {}

    def add(self, *args: Any, **options: Any) -> NoReturn:  # noqa: ARG002
        raise self._no_job()

    def transaction(self, result: Any = None) -> NoReturn:  # noqa: ARG002
        raise self._no_job()

    def complete(self, *, connection: Any, result: Any = None) -> NoReturn:  # noqa: ARG002
        raise self._no_job()

    async def acomplete(self, *, connection: Any, result: Any = None) -> NoReturn:  # noqa: ARG002
        raise self._no_job()

    def _no_job(self) -> ConfigError:
        return ConfigError(
            f"{self._task} was called as a function, so there is no job to complete or to add to; enqueue it "
            "and run a worker, for a test app.worker().run_until_idle()"
        )
