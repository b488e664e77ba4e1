"""The logger of Dray itself; what bodies log goes to their own loggers."""

from __future__ import annotations

import logging

log = logging.getLogger("dray")
