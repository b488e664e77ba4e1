"""A line in the admin that leads to the dashboard."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from dray.integrations.django.core import backends
from dray.integrations.django.models import Job


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """Shows where the dashboard is. There is no table behind it."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Jobs",
            "opts": self.model._meta,  # noqa: SLF001 - Django's name for what is public
            "dashboard": _address(),
            "place": backends.only().place,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/dray/job/change_list.html", context)


def _address() -> str | None:
    try:
        return reverse("dray:dashboard", args=[""])
    except NoReverseMatch:
        return None
