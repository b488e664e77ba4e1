"""One file that defines a task, enqueues a job and runs it in a worker of its own.

Run it on a SQLite file in the current directory, or name any database address: python examples/mailer.py [URL]
"""

from __future__ import annotations

import sys

import dray

app = dray.App(sys.argv[1] if len(sys.argv) > 1 else None, migrate=True)


@app.task(max_attempts=5, retry=dray.fixed(0.1))
def send(to: str, ctx: dray.Context) -> str:
    """Fails at its first attempt, as mail servers do."""
    if ctx.attempt == 1:
        raise ConnectionError("the mail server is away")
    ctx.log.info("sent to %s", to)
    return f"sent to {to}"


def main() -> None:
    with app, app.worker(concurrency=4):
        job = send.enqueue("ann@example.com")
        print(job.result(timeout=30))
        for attempt in job.attempts():
            print(f"attempt {attempt.number}: {attempt.outcome}")
        for line in job.logs():
            print(f"log: {line.message}")


if __name__ == "__main__":
    main()
