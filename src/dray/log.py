"""The logger of Dray itself; what bodies log goes to their own loggers."""

from __future__ import annotations

import logging

log = logging.getLogger("dray")

END_FIELDS = "dray_end"  # the attribute of a record about a job's end: what its line says, by name
