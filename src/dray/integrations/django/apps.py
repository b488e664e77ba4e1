"""The application for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from dray.integrations.django.tables import LABEL, after_migrate


class DrayConfig(AppConfig):
    name = "dray.integrations.django"
    label = LABEL
    verbose_name = "Dray"

    def ready(self) -> None:
        post_migrate.connect(after_migrate, dispatch_uid=self.name)
