from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests_integrations.django.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
