"""A whole database carried into another one, ids and all."""

from dray.ops.move.abandon import abandon
from dray.ops.move.carry import Progress, carry
from dray.ops.move.plan import Plan, Side, plan
from dray.ops.move.report import Moved, TableMoved, as_planned

__all__ = ["Moved", "Plan", "Progress", "Side", "TableMoved", "abandon", "as_planned", "carry", "plan"]
