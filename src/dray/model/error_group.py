"""Which failures are alike: the same task, and the same error but for the numbers and names in it.

A key stands for such a group. It is written into the job's row with the failure, so that groups are found off an
index. What it is made of must not change between releases: one group would become two.
"""

from __future__ import annotations

import re

VARIABLE = "·"
_PATTERN_LENGTH = 200
_READ = 2_000  # characters of an error that are looked at: one written by hand may have a megabyte

# What differs between two errors of a kind. The first that fits wins, so the longer come first.
_VARIABLES = re.compile(
    r"""
      "[^"]*(?:"|$) | (?<!\w)'[^']*(?:'(?!\w)|$) | `[^`]*` | “[^”]*”           # quoted; not the ' of "isn't"
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b                 # a UUID
    | \b0[xX][0-9a-fA-F]+\b
    | \b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{6,}\b         # hexadecimal: digits and letters
    | (?:(?<!\w)[-+])?\d+(?:[.,:_\-]\d+)*(?:[eE][-+]?\d+)?                     # numbers, dates, times, addresses
    """,
    re.VERBOSE,
)
# A part of a path that names one thing of many: what is variable in it makes all of it variable.
_PATH_PART = re.compile(rf"(?<=[/\\])[^/\\\s?&#,;:'\"<>()\[\]]*{VARIABLE}[^/\\\s?&#,;:'\"<>()\[\]]*")
_QUERY = re.compile(r"(?<=\S\?)[^\s'\"<>)]+")
_AGAIN = re.compile(rf"{VARIABLE}(?:{VARIABLE}|[\s,]*{VARIABLE})*")
_SPACE = re.compile(r"\s+")


def error_pattern(error: str) -> str:
    """The error with `·` for what differs between errors of its kind."""
    text = _SPACE.sub(" ", error[:_READ]).strip()
    text = _QUERY.sub(VARIABLE, text)
    text = _VARIABLES.sub(VARIABLE, text)
    text = _PATH_PART.sub(VARIABLE, text)
    text = _AGAIN.sub(VARIABLE, text)
    return text if len(text) <= _PATTERN_LENGTH else f"{text[: _PATTERN_LENGTH - 1]}…"


def error_key(task: str, error: str) -> str:
    """The group of a failure, as 16 hexadecimal digits."""
    from hashlib import blake2b  # noqa: PLC0415 - it loads OpenSSL, which jobs that complete do not need

    text = f"{task}\n{error_pattern(error)}"
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
