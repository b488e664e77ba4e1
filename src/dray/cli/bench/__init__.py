"""``dray bench``: its tasks, its worker, and the order of what it measures."""
