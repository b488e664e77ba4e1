"""Exceptions that a body (one call of a task's function) raises to control its job: Retry, Snooze, Fail, Cancel.

They are instructions to the worker, not errors, so they are not in the tree of `dray.errors`. Their arguments are
checked here, while the body's own traceback still points at the line.
"""

from __future__ import annotations

from datetime import timedelta

from dray.model.values import duration_us


class Steering(Exception):
    """The base class: to catch all of them, or to let them through an ``except Exception``.

    Example:

        >>> try:
        ...     raise dray.Snooze(60)
        ... except dray.Steering:  # before an ``except Exception``
        ...     print("let it through")
        let it through
    """


class Retry(Steering):
    """Run the job again, after a delay or as its retry policy says. It counts as an attempt.

    Example:

        >>> @app.task
        ... def poll(ctx: dray.Context) -> str:
        ...     if ctx.attempt == 1:
        ...         raise dray.Retry(delay=0)
        ...     return "ready"
        >>> job = poll.enqueue()
        >>> app.worker().run_until_idle()
        2
        >>> job.result()
        'ready'
    """

    def __init__(self, delay: float | timedelta | None = None, message: str | None = None) -> None:
        self.delay_us = None if delay is None else duration_us("Retry: delay", delay)
        self.message = None if message is None else _text("Retry: message", message)
        super().__init__(message or "the body asked to be run again")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (_delta(self.delay_us), self.message)


class Snooze(Steering):
    """Run the job again after a delay, without counting this attempt.

    Example:

        >>> @app.task
        ... def at_night() -> None:
        ...     raise dray.Snooze(3600)
        >>> job = at_night.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> job.state, job.attempt
        ('scheduled', 0)
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.delay_us = duration_us("Snooze: seconds", seconds)
        super().__init__("the body asked to be run later")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (_delta(self.delay_us),)


class Fail(Steering):
    """Fail the job, even if it has attempts left.

    Example:

        >>> @app.task
        ... def charge(account: str) -> None:
        ...     raise dray.Fail(f"no account {account}")
        >>> job = charge.enqueue("x")
        >>> app.worker().run_until_idle()
        1
        >>> job.state, job.error
        ('failed', 'Fail: no account x')
    """

    def __init__(self, message: str) -> None:
        self.message = _text("Fail: message", message)
        super().__init__(message)


class Cancel(Steering):
    """End the job as cancelled: it is no longer needed.

    Example:

        >>> @app.task
        ... def remind() -> None:
        ...     raise dray.Cancel("already paid")
        >>> job = remind.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> job.state, job.reason
        ('cancelled', 'user')
    """

    def __init__(self, message: str | None = None) -> None:
        self.message = None if message is None else _text("Cancel: message", message)
        super().__init__(message or "the body cancelled its job")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def _delta(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
