"""The templates, and what they can call: filters that make values fit to be shown."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from dray.web import show
from dray.web.svg import charts, tags
from dray.web.svg.tally import tally_bar


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("dray.web", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=show.visible,
    )
    made.globals["icon"] = tags.icon  # pyright: ignore[reportArgumentType] - its type lists what Jinja itself has
    made.globals["tally_bar"] = tally_bar  # pyright: ignore[reportArgumentType]
    made.globals.update(spark=charts.spark, gauge=charts.gauge, slots=charts.slots)  # pyright: ignore[reportArgumentType, reportCallIssue]
    made.filters.update(show.FILTERS)
    return made
