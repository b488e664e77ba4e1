"""The pages and the actions, each in the file of its name."""

from __future__ import annotations

from dray.web.page import Page, Post
from dray.web.pages import (
    actions,
    bulk,
    failures,
    job,
    jobs,
    metrics,
    overview,
    queues,
    schedules,
    system,
    tasks,
    workers,
    workflows,
)

# In the order in which paths are tried: /jobs/export before /jobs/{id}.
_MODULES = (
    overview, jobs, bulk, job, failures, queues, workflows, schedules, tasks, workers, metrics, actions, system
)  # fmt: skip

PAGES: list[Page] = [page for module in _MODULES for page in module.PAGES]
POSTS: list[Post] = [post for module in _MODULES for post in module.POSTS]
