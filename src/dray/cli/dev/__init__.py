"""``dray dev``: a worker that is started anew when code changes, and says in colour what it does."""
