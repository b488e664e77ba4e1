"""Tasks: functions that can be run later, elsewhere, by name.

A function is looked at once: its name and options (`options`), its arguments (`signature`). A `Task` then turns each
call into a job that is ready to be written, and its App writes it. Nothing here speaks to a database or asks for the
time.
"""
