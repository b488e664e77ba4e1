"""``dray demo``: a few thousand jobs on two worker processes, one of which is killed, and then the accounts.

`play` is what happens, in order; `tasks` what the workers run, with a ledger outside the database; `workers` the
processes; `stage` what is shown; `accounts` the comparison of the database with the ledger.
"""
