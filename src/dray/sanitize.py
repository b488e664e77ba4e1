"""Text made safe for where it goes: a database, a terminal, a log line.

Nothing here raises: an error message or a traceback must always be storable and printable, whatever a task put into
it. Redact first and cut afterwards: without its beginning, the end of an address is not recognised.
"""

from __future__ import annotations

import re

HIDDEN = "***"  # in place of what is secret
_CHUNK = 1 << 20


def clean(text: str, limit_bytes: int) -> str:
    """Text that both databases store, in at most ``limit_bytes`` of UTF-8, with a marker where it was cut.

    NUL becomes U+FFFD and a lone surrogate its escape, such as ``\\udc80``.
    """
    text = str.__str__(text)  # a hostile __str__ may return a subclass that overrides what is used below
    if len(text) <= limit_bytes and text.isascii() and "\0" not in text:
        return text
    stored = _stored(text[: limit_bytes + 1])
    if len(stored) <= limit_bytes:
        return stored.decode()
    return _joined(stored, b"", text, limit_bytes)


def clean_traceback(text: str, limit_bytes: int) -> str:
    """As `clean`, but cut in the middle: a third is kept of the beginning, the rest of the end, which was raised."""
    text = str.__str__(text)
    if len(text) <= limit_bytes:
        stored = _stored(text)
        if len(stored) <= limit_bytes:
            return stored.decode()
    return _joined(_stored(text[:limit_bytes]), _stored(text[-limit_bytes:]), text, limit_bytes)


def bounded(text: str, limit_bytes: int) -> str:
    """As `clean`, with passwords hidden. Of a very long text only the beginning is read."""
    text = str.__str__(text)
    if len(text) <= 4 * limit_bytes:
        return clean(redact(text), limit_bytes)
    return _joined(_stored(redact(text[: 4 * limit_bytes])), b"", text, limit_bytes)


def escape_control(text: str) -> str:
    """One line that cannot steer a terminal, forge a log line or fail to print.

    Control characters (also tab and newline), line and paragraph separators, bidirectional marks and overrides
    and lone surrogates are written as Python writes them: ``\\n``, ``\\x1b``, ``\\u202e``.
    """
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def escape_lines(text: str) -> str:
    """As `escape_control`, but keeps the lines, for a traceback. Lines after the first are indented, so that none
    looks like a log record."""
    first, *others = text.split("\n")
    return "\n".join([escape_control(first), *(f"    {escape_control(line)}" for line in others)])


def redact(text: str) -> str:
    """The text with ``***`` for each password in a database address: in a URL or in libpq's ``password=…``.

    A password may hold characters that it should not (``@``, ``/``, quotes). So a PostgreSQL URL ends at the next
    space and its password at the last ``@`` in it: better hide too much than show half of it. Addresses without
    their ``//``, and addresses percent-encoded like a file's name, count as well.
    """
    lower = text.lower()
    if "password" in lower or "client_secret" in lower:
        text = _SETTING.sub(lambda found: f"{found[1] or found[2] or found[3]}***", text)
    if "://" in text:
        text = _POSTGRES_URL.sub(_without_password, text)
        text = _USERINFO.sub(r"\1:***@", text)
    if "postgres" in lower:
        text = _MISTYPED_URL.sub(_without_middle, text)
    return text


def holds_password(text: str) -> bool:
    """Whether an address has a password in it. `redact` hides an empty one too, but it does not count here."""
    rest = _EMPTY.sub("", text)
    return redact(rest) != rest


def _without_password(found: re.Match[str]) -> str:
    url = found[0]
    start = url.index("://") + 3
    colon, at = url.find(":", start), url.rfind("@")
    if start <= colon < at:
        return f"{url[:colon]}:***{url[at:]}"
    if _CUT_SHORT.match(url, start):
        return f"{url[:colon]}:***"
    return url


def _without_middle(found: re.Match[str]) -> str:
    start, url = found[1], found[2]
    colon, ats = _COLON.search(url), list(_AT.finditer(url))
    if colon is None or not ats or colon.end() > ats[-1].start():
        return found[0]
    return f"{start}{url[: colon.end()]}***{url[ats[-1].start() :]}"


def _stored(text: str) -> bytes:
    return text.replace("\0", "\ufffd").encode(errors="backslashreplace")


def _joined(head: bytes, tail: bytes, text: str, limit_bytes: int) -> str:
    """As much of both ends as fits around a marker with the size of it all, cut between characters; no marker
    without room."""
    if text.isascii():
        size = len(text) + 2 * text.count("\0")
    else:
        size = sum(len(_stored(text[start : start + _CHUNK])) for start in range(0, len(text), _CHUNK))
    marker = f"… [truncated, {size:,} bytes in all]"
    marker = f"\n{marker}\n" if tail else marker
    room = limit_bytes - len(marker.encode())
    if room < 0:
        return head[:limit_bytes].decode(errors="ignore")
    kept_tail = room - room // 3 if tail else 0
    start = head[: room - kept_tail].decode(errors="ignore")
    end = tail[len(tail) - kept_tail :].decode(errors="ignore")
    return f"{start}{marker}{end}"


_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Each pattern takes linear time on any text: what follows its fixed beginning is either matched whole or ends before
# the next such beginning. ASCII, because only ASCII spaces end an address.
_FLAGS = re.ASCII | re.IGNORECASE
_SETTING = re.compile(
    r"""([?&](?:(?:ssl)?password|oauth_client_secret)=)[^&\s]*   # in a URL
      | (password(?:%20)*%3D)\S*            # in what was percent-encoded as a whole
      | (password\s*=\s*)                   # in a libpq string, where the value is
        (?: '(?:\\.|[^\\'\n])*'?            #   quoted,
          | \\'.*?(?<!\\)\\'                #   quoted in a string that is itself shown quoted,
          | "[^"\n]*" )?                    #   or quoted for a shell;
        (?:\\.|[^\\\s])*\\?                 #   or bare, as is all up to the next space
    """,
    _FLAGS | re.VERBOSE,
)
_POSTGRES_URL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://\S*", _FLAGS)
_MISTYPED_URL = re.compile(r"(postgres(?:ql)?(?:(?:\+|%2B)\w+)?(?:(?::|%3A)(?!//)|//))(\S*)", _FLAGS)
_COLON, _AT = re.compile(r":|%3A", _FLAGS), re.compile(r"@|%40", _FLAGS)
# No "@" follows. What does is not a port, and the colon does not belong to the text: "postgresql://host: no route".
_CUT_SHORT = re.compile(r"[^:/?\[]*:(?!\d{1,5}\b|\Z)", _FLAGS)
_EMPTY = re.compile(r":(?=@[^@]*\Z)|[?&](?:ssl)?password=(?=&|\Z)", _FLAGS)
_USERINFO = re.compile(r"(://[^\s:/?#]*):[^\s/?#]*@", _FLAGS)
