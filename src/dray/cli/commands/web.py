"""``dray web``: the dashboard, served by this process."""

from __future__ import annotations

import click

from dray import web as dashboards
from dray.app_interface import core_of
from dray.cli import logs
from dray.cli.apps import app_for_enqueueing, app_with_tasks, person
from dray.cli.door import (
    PORT,
    TOKEN_CHARS,
    bind,
    guard_options,
    is_loopback,
    origin_of,
    refuse_without_token,
    stopped_by_signals,
    token_from,
)
from dray.cli.exits import Code, Failure, say
from dray.cli.options import command, import_option, is_typed, option, wants_json
from dray.cli.output import json_line
from dray.web import extra
from dray.web.access import Access
from dray.web.link import Link


@command()
@click.argument("target", required=False, metavar="[APP]")
@option("--host", default="127.0.0.1", show_default=True, help="Address to serve on; another needs a token.")
@option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0: any that is free.")
@option("--read-only", is_flag=True, help="Only look: no page changes anything.")
@guard_options("DRAY_WEB_TOKEN", "a token to sign in with")
@import_option
@option("--log-level", type=click.Choice(logs.LEVELS), default="warning", show_default=True, help="What to log.")
def web(
    target: str | None,
    host: str,
    port: int,
    token_env: str,
    allow_host: tuple[str, ...],
    imports: tuple[str, ...],
    log_level: str,
    *,
    read_only: bool,
) -> int:
    """Serve the dashboard of the jobs in APP (module:object), until SIGTERM or Ctrl-C.

    It prints a link that signs in one browser, once, within ten minutes. The person who opens it may do everything.
    """
    if not extra.is_installed():
        raise Failure(extra.MISSING)
    token = token_from(token_env, must_be=is_typed("token_env"))
    app = app_with_tasks(target, imports) if target or imports else app_for_enqueueing()
    core_of(app).change_settings(migrate=False)
    core_of(app).backend.noted("version")  # fails here and now where there are no tables, and not on every page
    logs.configure(log_level)
    with bind(host, port) as bound:
        advice = f"set {token_env} to a token of {TOKEN_CHARS} characters or more, or leave --host out"
        refuse_without_token(bound, host, token, "visitors must sign in", advice)
        origin = origin_of(bound, host)
        link = Link.new() if is_loopback(bound) else None
        served = dashboards.Served(
            core_of(app),
            bound,
            Access("viewer" if read_only else "admin", person().who),
            token=token,
            names=(host, *allow_host),
            link=link,
            tell=None if link is None else lambda code: _tell(origin, code),
        )
        if link is None:
            _put(origin, f"sign in with the token in {token_env}")
        else:
            _tell(origin, link.code)
        with stopped_by_signals(served.stop):
            served.serve()
    return Code.DONE


def _tell(origin: str, code: str) -> None:
    _put(f"{origin}/login?code={code}", "open this link within ten minutes; it signs in one browser, once")


def _put(address: str, what: str) -> None:
    click.echo(json_line({"url": address}) if wants_json() else address)
    say(f"{what}; Ctrl-C ends this")
