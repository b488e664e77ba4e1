"""`make compare`: Dray beside its peers, the same work one after the other in one run."""
