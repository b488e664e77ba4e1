"""Why a job is where it is: decided from its circumstances, without a look at anything else.

Every job gets a cause. What is said is true of the rows it was read from; several causes may hold at once, and the
first is the one to do something about.
"""

from __future__ import annotations

from dray.model.causes.cause import Cause, Kind, cause
from dray.model.causes.ended import ended
from dray.model.causes.running import running
from dray.model.causes.unstarted import unstarted
from dray.model.circumstance import Circumstances
from dray.model.closed import Closed
from dray.model.job import FINAL, UNSTARTED, State


def explain(around: Circumstances, misfit: str | None = None) -> list[Cause]:
    """All causes that hold. `misfit`: what the code at hand has against the job's arguments."""
    state = around.job.state
    if around.closed is not None:
        # What else the tables say is of the past, or not all there: nothing that is done here would help.
        moved = _moved(around.closed)
        return [*ended(around), moved] if state in FINAL else [moved]
    if state in FINAL:
        return ended(around)
    if state == State.RUNNING:
        return running(around)
    if state in UNSTARTED:
        return unstarted(around, misfit)
    return [cause(Kind.OTHER, f"It is {state}, a state that this release does not know.", state=state)]


def _moved(closed: Closed) -> Cause:
    text = f"Nothing changes here: {closed.text}. "
    text += "Look there." if closed.target is not None else "Look again when that is done."
    return cause(Kind.MOVED, text, target=closed.target)


__all__ = ["Cause", "Kind", "cause", "explain"]
