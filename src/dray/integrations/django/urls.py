"""The dashboard for staff: ``path("ops/jobs/", include("dray.integrations.django.urls"))``."""

from __future__ import annotations

from django.urls import re_path

from dray.integrations.django.views import dashboard_view

app_name = "dray"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard_view, name="dashboard")]
