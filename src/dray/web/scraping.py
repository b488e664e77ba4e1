"""`/metrics` for Prometheus, which asks for text; a browser, which asks for HTML, gets the page of that name.

It is for those who may see the pages of the whole database. `dray web` takes its token in a header too, here alone:
a scraper cannot sign in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match, Route

from dray.runtime.health import METRICS_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from dray.web.access import Access

_PATHS = frozenset({"/metrics", "/metrics.txt"})
WITHOUT_TOKEN = "Send the token that this was started with: Authorization: Bearer TOKEN.\n"  # noqa: S105 - words


class ForScrapers(Route):
    """A route for those alone who ask for text and not for HTML."""

    def matches(self, scope: Scope) -> tuple[Match, Any]:
        accept = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        wants_text = "text/html" not in accept and ("text/plain" in accept or "openmetrics" in accept)
        return super().matches(scope) if wants_text else (Match.NONE, {})


def is_scrape(request: Request) -> bool:
    return request.method in {"GET", "HEAD"} and request.url.path in _PATHS


def bearer_token(request: Request) -> str | None:
    """What a scraper sends; None: nothing, or it is no scraper."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if is_scrape(request) and scheme.lower() == "bearer" else None


def refusal(access: Access | None) -> Response | None:
    """The answer to those who may not scrape; None: they may."""
    if access is None:
        return Response("You may not see this dashboard.\n", 403, media_type="text/plain")
    if access.queues is not None:
        words = "Metrics are of the whole database: you see some queues alone.\n"
        return Response(words, 403, media_type="text/plain")
    return None


def answer(text: str) -> Response:
    return Response(text, headers={"content-type": METRICS_TYPE, "vary": "Accept"})
