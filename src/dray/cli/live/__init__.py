"""Views that change: `dray top`, and commands with ``--watch``.

rich draws the tables and progress bars of the other commands, but not these, for measured reasons. A frame of
`dray top` takes 1.3 to 1.9 ms of CPU here, and 15 to 23 ms with rich's Live, Layout and Table (80x24 to 200x60). Live
also sends the whole screen, 2.5 to 12 KB, when nothing has changed; `Screen` then sends nothing. When a terminal gets
narrower, Live leaves old lines behind; `Region` clears them. rich reads no keys and does not handle Ctrl-Z. What is
used of it are its styles and segments, and how wide characters are.
"""
