"""A worker process, as a script has one: ``python -m tests.processes.serve MODULE '{"lease": 3, ...}'``.

MODULE has an App named `app`, on the database of DRAY_URL. Standard error is the worker's log.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys

from tests.processes import clockwork


def main() -> None:
    module, options = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(threadName)s %(message)s")
    clockwork.install()
    app = importlib.import_module(module).app
    ending = app.worker(owns_process=True, **options).run()
    logging.shutdown()
    if ending.name == "RENEW":
        os.execv(sys.executable, sys.orig_argv)
    os._exit(0)  # a body that did not stop goes with its process


if __name__ == "__main__":
    main()
