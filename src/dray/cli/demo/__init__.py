"""``dray demo``: a few thousand jobs on two worker processes, one of which is killed, and then the accounts.

`play` is what happens, in order, and the worker processes; `tasks` what they run, with a ledger outside the database;
`accounts` the comparison of the database with the ledger.
"""
