"""Child processes that run one body at a time, and what starts them.

    worker ── slot thread ──┬── jobs ⇄ lines, outcomes ──▶ child      one socket pair each
                            ├── turns ⇄ bell ──▶                     one more: which job it may begin
                            └── exit status ◀── forker ──forks──▶    one more, to the forker

Children are forked by a small process, the `forker`, not by the worker: a fork of a process with threads inherits
locks that no thread will ever release, and SQLite connections that must not be used. It is not the fork server of
multiprocessing. That one belongs to the whole program (what it has loaded, how long it lives), lives on with its
children when a worker is killed, reads pickles, and reaps at once, so that the number of a process group that is to
be killed may be another group's by then. Measured: the forker takes 0.2 s to start, a child 3 to 6 ms and 3 MB. A
child imports the user's modules once, and then runs many jobs.

Who ends when:

- A worker dies, no matter how: the kernel tells the forker (PR_SET_PDEATHSIG), which kills the group of each child
  and ends. If the forker dies, the kernel kills the children. A child that has a job holds the descriptor of its
  worker's lock until it is gone, so that no retry can start beside it.
- A job is stopped: the child gets SIGTERM, and its body may clean up. A child that does not end is killed. Either way
  nothing of its process group is left when the attempt is reported.
- A job ends: the child is kept for the next one, as are processes that the body left running.
- SIGTERM from another process (systemd sends it to a whole service) is for the worker; a child ignores it.
"""
