"""The options that say which jobs are meant, for lists and for actions on many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dray.cli.shared import option
from dray.cli.times import Since
from dray.model.job import states_named

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType

C = TypeVar("C", bound=Callable[..., Any])


class State(_Type):
    """A job's state, or one of the words people bring from elsewhere."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            states_named(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_OPTIONS = (
    option("--state", type=State(), multiple=True, help="In this state (repeat for several)."),
    option("--queue", help="In this queue."),
    option("--task", help="Of this task."),
    option("--tag", help="With this tag."),
    option("--since", type=Since(), metavar="TIME", help="Enqueued since then: 1h, or 2026-11-15T08:00."),
)


def filters(command: C) -> C:
    """Gives a command the options state, queue, task, tag and since, as `App.jobs` takes them."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the filters that were given."""
    return {name: value for name, value in options.items() if value}
