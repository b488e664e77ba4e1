"""The tasks of `apps`, in a process whose connection that listens is made slowly while DRAY_TEST_SLOW is there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.processes import ledger
from tests.processes.apps import app

_connect = psycopg.connect


def connect(*args: Any, **options: Any) -> Any:
    path = Path(os.environ["DRAY_TEST_SLOW"])
    if options.get("application_name") != "dray listen" or not path.exists():
        return _connect(*args, **options)
    ledger.write("connecting", "listen")
    time.sleep(float(path.read_text()))
    connection = _connect(*args, **options)
    ledger.write("connected", "listen")
    return connection


psycopg.connect = connect

__all__ = ["app"]
