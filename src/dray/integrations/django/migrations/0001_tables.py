"""Dray's tables. Later releases of Dray upgrade them after `migrate`; see tables.py."""

from django.db import migrations, models

from dray.integrations.django.tables import MakeTables


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        MakeTables(),
        migrations.CreateModel(
            name="Job",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
            },
        ),
    ]
