"""The work of the comparison with each queue, one module a queue. These run in the environment of the peers.

Each module has `producer`, `work` and, where tables have to be made, `prepare`. See `work.py` for what they share and
`__main__.py` for the program around them.
"""
