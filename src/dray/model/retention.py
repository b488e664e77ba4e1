"""How long finished jobs are kept: what the pruner may remove."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dray.errors import ConfigError
from dray.instants import DAY
from dray.model.names import shown


@dataclass(frozen=True, slots=True)
class Retention:
    """Time from a job's end to its removal, by final state; None keeps it for ever."""

    completed_us: int | None = 7 * DAY
    cancelled_us: int | None = 7 * DAY
    failed_us: int | None = 30 * DAY

    def __post_init__(self) -> None:
        for state, kept_us in self._by_state().items():
            _check(state, kept_us)

    def cutoffs(self, now: int) -> dict[str, int]:
        """For each state that is pruned at all: jobs that finished before this instant go."""
        return {state: now - kept_us for state, kept_us in self._by_state().items() if kept_us is not None}

    def _by_state(self) -> dict[str, int | None]:
        return {field.removesuffix("_us"): kept_us for field, kept_us in asdict(self).items()}


def _check(state: str, kept_us: object) -> None:
    if kept_us is None:
        return
    if isinstance(kept_us, bool) or not isinstance(kept_us, int) or kept_us < 0:
        raise ConfigError(
            f"retention of {state} jobs must be microseconds, 0 or more, or None to keep them, not {shown(kept_us)}"
        )
