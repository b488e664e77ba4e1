"""Whether a task's error is tried again, and when."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dray.model import retry

if TYPE_CHECKING:
    from dray.model.settlement import Rng
    from dray.task.options import TaskOptions

_log = logging.getLogger("dray")


def next_delay_us(options: TaskOptions, attempt: int, error: BaseException, rng: Rng) -> int | None:
    """Microseconds until the next attempt; None: this error is final. Whether attempts are left is the job's to say.

    `fail_on` comes before `retry_on`; with neither, every error is tried again.
    """
    if isinstance(error, options.fail_on):
        return None
    if options.retry_on and not isinstance(error, options.retry_on):
        return None
    return policy_delay_us(options, attempt, rng)


def policy_delay_us(options: TaskOptions, attempt: int, rng: Rng) -> int:
    """Microseconds until the next attempt, as the task's policy has it."""
    try:
        return retry.delay_us(options.retry, attempt, rng)
    except Exception:  # noqa: BLE001 - the job has one error already; a second one must not cost it its attempts
        _log.exception("task %s: its retry policy failed after attempt %d; using the default", options.name, attempt)
        return retry.delay_us(retry.DEFAULT, attempt, rng)
