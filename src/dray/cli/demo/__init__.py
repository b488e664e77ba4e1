"""``dray demo``: a few thousand jobs on two worker processes, one of them killed on the way, and then the accounts.

`tasks` are what the workers run, `workers` the processes, `acts` what happens, `stage` what is shown, `ledger` what
the bodies note down outside the database, `verdict` the comparison of both.
"""
