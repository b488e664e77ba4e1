"""Where `dray web`, `dray mcp` and `dray dev` are served, and what opens them. No server is loaded here."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.cli.exits import Code, Failure
from dray.cli.options import all_of, option
from dray.runtime.signals import ends_by, handling
from dray.web.link import Link

PORT = 8321
TOKEN_CHARS = 16
_LONGEST_END = 1.8  # seconds: a read of the database that hangs is left behind
_BACKLOG = 128
_DEV = "_DRAY_DEV_DOOR"  # in the environment of the processes of one `dray dev`


def guard_options(variable: str, what: str) -> Callable[[Any], Any]:
    """Returns a decorator with the options of a server that checks names and a token."""
    return all_of(
        option(
            "--token-env",
            metavar="NAME",
            default=variable,
            show_default=True,
            help=f"The variable with {what}, of {TOKEN_CHARS} characters or more.",
        ),
        option(
            "--allow-host", metavar="NAME", multiple=True, help="A name it is reached by, such as that of a proxy."
        ),
    )


def bind(
    host: str,
    port: int,
    what: str = "the dashboard",
    advice: str = "choose another --port, or --port 0 for any that is free",
) -> socket.socket:
    """Returns a socket that listens: clients wait until the server replies. Port 0: any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Failure(f"{host} is no address of this machine: {error.strerror}; choose another") from None
    family, _, _, _, address = found[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of closed connections
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        problem = (error.strerror or str(error)).lower()
        raise Failure(f"{what} cannot be served on {host}:{port}: {problem}; {advice}") from None
    return made


def is_loopback(bound: socket.socket) -> bool:
    return _address(bound).is_loopback


def origin_of(bound: socket.socket, host: str) -> str:
    """Returns where a browser on this machine finds it."""
    address = _address(bound)
    name = {4: "127.0.0.1", 6: "::1"}[address.version] if address.is_unspecified else host
    return f"http://{f'[{name}]' if ':' in name else name}:{bound.getsockname()[1]}"


def _address(bound: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])


def token_from(variable: str, *, must_be: bool) -> str | None:
    """Returns the token to sign in with, from the environment: command lines are public."""
    token = os.environ.get(variable)
    if not token and must_be:
        raise Failure(f"the variable {variable}, which --token-env names, is not set", Code.USAGE)
    return token or None


def refuse_without_token(bound: socket.socket, host: str, token: str | None, must: str, advice: str) -> None:
    """Refuses to serve other machines without a token; `must` says who needs it for what."""
    if token is None and not is_loopback(bound):
        raise Failure(f"{host} can be reached from other machines, so {must}: {advice}", Code.USAGE)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Calls `stop` at a signal that ends the process, which then ends soon, whatever still runs."""

    def end(*_: object) -> None:
        stop()
        last = threading.Timer(_LONGEST_END, os._exit, [Code.DONE])
        last.daemon = True
        last.start()

    with handling(dict.fromkeys(ends_by(), end)):
        yield


@dataclass(frozen=True, slots=True)
class Door:
    """The port of a `dray dev`, and what signs in there; the same in each process that it restarts."""

    port: int
    key: str  # sessions are signed with it
    link: Link

    @classmethod
    def inherited(cls) -> Door | None:
        """Returns the door that `shared` has passed on. Processes that tasks start do not see it."""
        given = os.environ.pop(_DEV, None)
        if given is None:
            return None
        port, key, link = json.loads(given)
        return cls(port, key, Link(*link))


@contextmanager
def shared() -> Generator[Door]:
    """Makes a door for this process and for those that it starts during the block."""
    with tempfile.NamedTemporaryFile(prefix="dray-link-", delete=False) as ticket:
        link = Link.new(ticket.name)
    try:
        door = Door(_free_port(), secrets.token_hex(32), link)
        os.environ[_DEV] = json.dumps([door.port, door.key, [link.code, link.until, link.ticket]])
        yield door
    finally:
        os.environ.pop(_DEV, None)
        Path(ticket.name).unlink(missing_ok=True)


def _free_port() -> int:
    try:
        made = bind("127.0.0.1", PORT)
    except Failure:  # in use
        made = bind("127.0.0.1", 0)
    with made:
        return made.getsockname()[1]
