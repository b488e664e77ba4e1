"""How often the tests look for something that another thread, process or server does."""

from __future__ import annotations

import time


def pause(began: float, looked_at: float) -> None:
    """Sleeps between two looks; both are readings of `time.monotonic`, of the first look and of the last.

    A look every 5 ms, each of which was a query, took a quarter of the processor time of what was waited for. So the
    longer the wait, the fewer the looks: what is waited for is seen a tenth later at most. Slow looks take a fifth of
    one processor at most.
    """
    now = time.monotonic()
    time.sleep(min(max(0.005, 4 * (now - looked_at), (now - began) / 10), 0.05))
