"""What is sold."""

from django.db import models


class Order(models.Model):
    what = models.CharField(max_length=100)
    receipt = models.TextField(default="")
