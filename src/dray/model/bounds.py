"""How large things may be: the bounds that keep one job from filling the database.

Sizes are bytes of UTF-8. Over a limit is an error before anything is written; error messages, tracebacks and
logs are cut and marked instead, because they describe something that has already happened.
"""

from __future__ import annotations

from dray.instants import DAY

KIB = 1024
MIB = 1024 * KIB

ARGS_BYTES = 256 * KIB
RESULT_BYTES = 1 * MIB
TRACEBACK_BYTES = 64 * KIB
ERROR_MESSAGE_BYTES = 4 * KIB
LOG_MESSAGE_BYTES = 8 * KIB
LOG_LINES = 1_000  # per job

ATTEMPTS_KEPT = 100  # per job, the newest
TAGS = 20  # per job
TAG_CHARS = 100
HEADERS = 50  # per job
HEADER_CHARS = 100  # of a name
HEADERS_BYTES = 8 * KIB  # of all of a job's, as JSON
RETRY_ON = 50  # exception types that one job names
UNIQUE_CHARS = 500
KEY_CHARS = 200  # of the key by which jobs take turns
JOB_NAME_CHARS = 200
DESCRIPTION_CHARS = 500

ACTION_WHO_BYTES = 200  # of an action: who did it, to what, and what was noted; cut too
ACTION_TARGET_BYTES = 1 * KIB
ACTION_NOTE_BYTES = 1 * KIB

LIMIT_MAX = 1_000_000  # jobs at the same time, or starts in a period
RATES = 4  # of one kind for a task or queue

NAME_CHARS = 200  # of a task, queue, schedule or step
CRON_CHARS = 1_000

# The same range on both databases: an integer of 32 bits, symmetric so that a priority can be negated.
PRIORITY_MAX = 2_147_483_647
PRIORITY_MIN = -PRIORITY_MAX

# No delay, interval or retention is longer: what is further away is a mistake in the unit.
DELAY_US = 3_653 * DAY  # ten years

# Rows that one transaction of a duty may touch, so that no duty keeps the write lock for long. Pruner: retention.py.
FANOUT_CHUNK = 250
PRUNE_CHUNK = 1_000
PROMOTE_CHUNK = 1_000
