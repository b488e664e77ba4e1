"""Child processes that run one body at a time, and what starts them.

    worker ── slot thread ──┬── job ⇄ lines, outcome ──▶ child        one socket pair each
                            └── exit status ◀── forker ──forks──▶    one more, to the forker

Children are forked by a small process of our own, the `forker`, not by the worker: a fork of a process with threads
inherits locks that nobody will ever release, and SQLite connections that must not be used. It is not the fork server
of multiprocessing, because that one belongs to the whole program (what it has loaded, how long it lives), lives on
with its children when a worker is killed, reaps at once, so that a process group might be killed that is somebody
else's by then, and reads pickles. Measured: the forker takes 0.2 s to start, a child 3 to 6 ms and 3 MB; the user's
modules it imports itself, once, and then it is used again.

Who ends when:

- A worker dies in whatever way: the kernel tells the forker (PR_SET_PDEATHSIG), which kills the group of each child
  and ends. If the forker dies, the kernel kills the children. Until it is gone a child that has a job holds the
  descriptor of its worker's lock, so that no retry can start beside it.
- A job is stopped: the child gets SIGTERM; its body may clean up. What does not end is killed. Either way nothing of
  its process group is left before the attempt is reported.
- A job ends: the child is kept for the next one, as are processes that the body left running.
- SIGTERM from anybody else (systemd sends it to a whole service) is for the worker to act upon; here it does nothing.
"""
