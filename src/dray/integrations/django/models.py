"""No table: a name for permissions, and for a line in the admin."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """``dray.view_job`` may look at the dashboard, ``dray.change_job`` operate, ``dray.delete_job`` administer."""

    id = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        verbose_name = "job"
        verbose_name_plural = "jobs"
        default_permissions = ("view", "change", "delete")
