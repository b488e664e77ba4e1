"""`with_cleanup`: cleaning up runs to its end once, although an exception may cut it short."""

from __future__ import annotations

import pytest

from dray.interrupts import with_cleanup


class Cleanup:
    """Notes each run; the first of them raise."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.ends: list[str] = []

    def __call__(self) -> None:
        if self._errors:
            self.ends.append("cut short")
            raise self._errors.pop(0)
        self.ends.append("done")


def fail() -> None:
    raise LookupError


def test_it_runs_once_where_nothing_cuts_it_short() -> None:
    cleanup = Cleanup()

    assert with_cleanup(lambda: 7, cleanup) == 7
    assert cleanup.ends == ["done"]


def test_it_runs_once_after_an_error() -> None:
    cleanup = Cleanup()

    with pytest.raises(LookupError):
        with_cleanup(fail, cleanup)
    assert cleanup.ends == ["done"]


@pytest.mark.parametrize("work", [lambda: None, fail])
def test_it_runs_again_where_an_exception_has_cut_it_short(work: object) -> None:
    cleanup = Cleanup(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        with_cleanup(work, cleanup)  # type: ignore[arg-type]
    assert cleanup.ends == ["cut short", "done"]
