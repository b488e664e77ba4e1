"""``dray mcp``: an MCP server for agents, on standard input and output or on a port."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import click

import dray
from dray.app_interface import core_of
from dray.cli import logs
from dray.cli.apps import app_for_enqueueing, app_with_tasks, code_facts, person
from dray.cli.door import (
    TOKEN_CHARS,
    bind,
    guard_options,
    origin_of,
    refuse_without_token,
    stopped_by_signals,
    token_from,
)
from dray.cli.exits import Code, Failure, say
from dray.cli.options import command, import_option, is_typed, option, wants_json
from dray.cli.output import json_line
from dray.integrations import mcp as integration
from dray.integrations.mcp import extra
from dray.runtime.signals import ends_by, handling

_PATIENCE = 10.0  # seconds for a locked database: an agent waits for its answer
_ADDRESS = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^\[\]:]*):)?(?P<port>[0-9]{1,5})")


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    found = _ADDRESS.fullmatch(value)
    if found is None or int(found["port"]) > 65_535:
        raise click.BadParameter(f"{value!r} is no address; write 127.0.0.1:8322, or a port alone", ctx, param)
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


@command()
@click.argument("target", required=False, metavar="[APP]")
@option("--write", is_flag=True, help="Agents may act too: enqueue, retry, cancel, pause, resume.")
@option("--as", "who", metavar="NAME", help="The person for whom agents act, in Actions; else your login name.")
@option("--http", metavar="HOST:PORT", callback=_address, help="Serve HTTP here; a port alone is on this machine.")
@guard_options("DRAY_MCP_TOKEN", "the bearer token that requests must send with --http")
@import_option
@option("--log-level", type=click.Choice(logs.LEVELS), default="warning", show_default=True, help="What to log.")
def mcp(
    target: str | None,
    who: str | None,
    http: tuple[str, int] | None,
    token_env: str,
    allow_host: tuple[str, ...],
    imports: tuple[str, ...],
    log_level: str,
    *,
    write: bool,
) -> int:
    """Serve the jobs of APP (module:object) to agents, by the Model Context Protocol.

    A client starts this and talks to it on stdin and stdout, until stdin is closed. With --http it serves
    http://HOST:PORT/mcp until SIGTERM or Ctrl-C. Without --write agents only look; with it, those on a port must send
    a token, which is made and printed if you set none.
    """
    if not extra.is_installed():
        raise Failure(extra.MISSING)
    if http is None and (allow_host or is_typed("token_env")):
        raise click.UsageError("--token-env and --allow-host go with --http")
    by = person().who if who is None else who
    if not by.strip():
        raise click.UsageError("--as is empty; give the name of a person, or leave it out")
    with ExitStack() as around:
        if http is None:
            around.enter_context(_stdout_kept_clean())
        token = None if http is None else _token(token_env)
        app = app_with_tasks(target, imports) if target or imports else app_for_enqueueing()
        core = core_of(app)
        core.change_settings(migrate=False, busy_timeout=min(_PATIENCE, core.settings.busy_timeout))
        logs.configure(log_level)  # before the SDK does so in its own way
    if http is None:
        _on_stdio(app, by, write=write)
    else:
        _on_port(app, by, *http, token, token_env, allow_host, write=write)
    return Code.DONE


def _on_stdio(app: dray.App, by: str, *, write: bool) -> None:
    if sys.stdin.isatty():
        say("this speaks with an MCP client on stdin and stdout, which starts it; Ctrl-C ends it")
    # The thread that reads stdin cannot be interrupted. What is under way is one transaction: it is done, or not.
    with handling(dict.fromkeys(ends_by(), _leave)):
        integration.serve_stdio(app, who=by, write=write, facts=code_facts(app))


def _leave(*_: object) -> None:
    os._exit(Code.DONE)


def _on_port(
    app: dray.App,
    by: str,
    host: str,
    port: int,
    token: str | None,
    variable: str,
    names: tuple[str, ...],
    *,
    write: bool,
) -> None:
    with (
        bind(host, port, "the MCP server", "choose another port, or 0 for any that is free") as bound,
        ExitStack() as until,
    ):
        advice = f"set {variable} to one of {TOKEN_CHARS} characters or more, or serve 127.0.0.1"
        refuse_without_token(bound, host, token, "agents must send a token", advice)
        address = f"{origin_of(bound, host)}/mcp"
        # Every user of this machine reaches the port: to look is open to them, to act in a person's name is not.
        made = secrets.token_urlsafe(24) if write and token is None else None

        def started(stop: Callable[[], None]) -> None:
            until.enter_context(stopped_by_signals(stop))
            if wants_json():
                click.echo(json_line({"url": address} | ({} if made is None else {"token": made})))
            else:
                click.echo(address if made is None else f"{address}\nAuthorization: Bearer {made}")
            say(f"{_who_may(write=write, token=token, made=made, variable=variable)}; Ctrl-C ends this")

        integration.serve_http(
            app,
            bound,
            who=by,
            write=write,
            facts=code_facts(app),
            names=(host, *names),
            token=token or made,
            started=started,
        )


def _who_may(*, write: bool, token: str | None, made: str | None, variable: str) -> str:
    if made is not None:
        return (
            f"agents that send this header may act here; it is not shown again (set {variable} to choose the token)"
        )
    if write:
        return "agents may act here"
    open_to = "" if token else f", and so may every user of this machine, unless you set {variable}"
    return f"agents may look here{open_to}"


def _token(variable: str) -> str | None:
    token = token_from(variable, must_be=is_typed("token_env"))
    if token is not None and len(token) < TOKEN_CHARS:
        raise Failure(f"the token in {variable} is too short; use {TOKEN_CHARS} characters or more", Code.USAGE)
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise Failure(f"the token in {variable} cannot be sent in a header; use letters and digits", Code.USAGE)
    return token


@contextmanager
def _stdout_kept_clean() -> Generator[None]:
    """Turns what the app's modules print while they are imported to stderr."""
    sys.stdout.flush()
    wire = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(wire, 1)
        os.close(wire)
