"""What exists in Dray, and what follows from what: pure values and rules, no I/O, no clock, no SQL."""
