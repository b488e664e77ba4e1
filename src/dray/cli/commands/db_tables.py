"""``dray db init|migrate|status``: the tables, made, upgraded and looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dray.cli.exits import Code, Failure
from dray.cli.output import Column, is_terminal, put_fields, put_flat, put_json
from dray.cli.shared import app_on_tables, shared, wants_json

if TYPE_CHECKING:
    from dray.app import App


@click.command()
@shared
def init() -> None:
    """Make the tables, and the file, if they are not there. Also upgrades them."""
    app = app_on_tables()
    app.backend.migrate()
    _put(app)


@click.command()
@shared
def migrate() -> None:
    """Upgrade the tables to what this version of Dray needs; on PostgreSQL it makes them, too."""
    app = app_on_tables()
    if app.settings.is_sqlite:
        _version(app)  # a mistyped path is no reason to make a file
    app.backend.migrate()
    _put(app)


@click.command()
@shared
def status() -> None:
    """Where the tables are, and which version they have.

    Exit code 6: there are none, they need an upgrade, or they are too new for this Dray; or a move has closed them.
    """
    app = app_on_tables()
    version, known = _version(app), _newest(app)
    _put(app)
    if version < known:
        raise Failure(f"{app.settings.place}: the tables need an upgrade; run `dray db migrate`", Code.NO_DATABASE)
    app.backend.queues.all()  # whoever uses them finds out whether they are too new
    _refuse_closed(app)


def _version(app: App) -> int:
    version = app.backend.schema_version()
    if version is None:
        raise Failure(f"{app.settings.place}: there are no tables; run `dray db init`", Code.NO_DATABASE)
    return version


def _refuse_closed(app: App) -> None:
    from dray.model.circumstances import Closed  # noqa: PLC0415 - `dray db --help` needs none

    closed = Closed.of(app.backend.examine().known())
    if closed is not None:
        raise Failure(f"{app.settings.place}: {closed.text}; {closed.fix}", Code.NO_DATABASE)


def _newest(app: App) -> int:
    from dray.backends.migrate import latest  # noqa: PLC0415 - `dray db --help` needs none

    return latest("sqlite" if app.settings.is_sqlite else "postgres")


def _put(app: App) -> None:
    shape = {
        "database": app.settings.place,
        "version": app.backend.schema_version(),
        "newest_version": _newest(app),
    }
    if wants_json():
        put_json(shape)
    elif is_terminal():
        put_fields(shape, [Column(name.replace("_", " "), name) for name in shape])
    else:
        put_flat(shape)
