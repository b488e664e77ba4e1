"""The numbers beside the entries of the menu: cheap, capped, from what visits share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.ops.attention import SINCE_US

if TYPE_CHECKING:
    from dray.backends.store.overview import Around
    from dray.web.access import Access
    from dray.web.site import Site

_KEPT = 2.0  # seconds
_MOST = 1_000  # that are counted
_LISTED = 8  # schedules that run next, and workers that died


def around(site: Site) -> Around:
    """What the menu and the overview show beside the snapshot."""
    backend = site.core.backend
    return site.shared.get(
        "around",
        _KEPT,
        lambda: backend.overview.around(since=backend.now() - SINCE_US, limit=_LISTED, most=_MOST),
    )


def numbers(site: Site, access: Access) -> dict[str, str]:
    """By the names of the entries. Those who may see some queues alone get the number of these."""
    seen = site.snapshot()
    queues = sum(access.sees(queue["name"]) for queue in seen.queues)
    if access.queues is not None:
        return _shown({"queues": queues})
    found = around(site)
    return _shown(
        {
            "queues": max(queues, seen.queue_count),
            "failures": found.failing,
            "schedules": found.schedules,
            "workers": len(seen.workers),
        }
    )


def _shown(counts: dict[str, int]) -> dict[str, str]:
    return {name: f"{_MOST - 1}+" if count >= _MOST else f"{count:,}" for name, count in counts.items() if count}
