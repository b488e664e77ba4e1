from __future__ import annotations

from django.db import models


class Order(models.Model):
    what = models.CharField(max_length=50)
    is_paid = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"
