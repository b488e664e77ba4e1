"""Where a page of a list begins, as its address says."""

from __future__ import annotations

from dray.errors import ConfigError
from dray.model.values import canonical_id, shown
from dray.web.visit import Visit


def cursor(visit: Visit, name: str) -> str | None:
    """The id that a page begins after; None: at the beginning."""
    given = visit.query.get(name)
    if not given:
        return None
    whole = canonical_id(given)
    if whole is None:
        raise ConfigError(f"{name}={shown(given)} is no id: leave it out to begin at the start")
    return whole
