"""A program that falls silent inside a transaction of Dray's own: ``python -m tests.processes.silent JOB``."""

from __future__ import annotations

import os
import sys
import time

from dray.backends import open_backend
from dray.backends.database import Session
from tests.processes import ledger


def main() -> None:
    def work(tx: Session) -> None:
        assert tx.rows("job_lock", ids=[sys.argv[1]])
        ledger.write("locked", "silent")
        time.sleep(600)

    open_backend(os.environ["DRAY_URL"]).db.write(work)


if __name__ == "__main__":
    main()
