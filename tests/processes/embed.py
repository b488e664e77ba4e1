"""A program with a worker inside: ``python -m tests.processes.embed MODULE '{"lease": 3, ...}' FOLDER``.

It leaves ``with app.worker(...)`` when there is a file `leave` in the folder, and ends when there is one `exit`;
the ledger tells how far it is.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from pathlib import Path

from tests.processes import ledger


def main() -> None:
    module, options, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(threadName)s %(message)s")
    app = importlib.import_module(module).app
    ledger.write("program", "begins")
    with app.worker(**options):
        _await(folder / "leave")
    ledger.write("program", "has left")
    _await(folder / "exit")
    app.close()
    ledger.write("program", "ends")


def _await(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
