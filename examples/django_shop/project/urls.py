"""The shop, the admin, and the dashboard of its jobs for staff."""

from django.contrib import admin
from django.urls import include, path
from shop import views

urlpatterns = [
    path("buy/<str:what>", views.buy),
    path("admin/", admin.site.urls),
    path("ops/jobs/", include("dray.integrations.django.urls")),
]
