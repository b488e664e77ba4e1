"""A link that signs in one browser, once, within ten minutes."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

LASTS = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Link:
    """`ticket` is a file that its use removes: for a link that several processes know, one after the other."""

    code: str
    until: float  # a reading of time.time()
    ticket: str | None = None

    @classmethod
    def new(cls, ticket: str | None = None) -> Link:
        return cls(secrets.token_urlsafe(24), time.time() + LASTS, ticket)

    def is_live(self) -> bool:
        return time.time() < self.until and (self.ticket is None or Path(self.ticket).exists())

    def use(self) -> bool:
        """Whether this was its first use."""
        if self.ticket is None:
            return True
        try:
            Path(self.ticket).unlink()
        except FileNotFoundError:
            return False
        return True
