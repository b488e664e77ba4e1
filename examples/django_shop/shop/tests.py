"""The same tests in both kinds of test case, for `manage.py test`, `manage.py test --parallel` and pytest-django."""

from django.test import TestCase, TransactionTestCase

from dray.integrations.django import app
from dray.testing import assert_enqueued, drain
from shop.models import Order
from shop.tasks import send_receipt


class BuyTea:
    def test_an_order_gets_its_receipt(self):
        answer = self.client.get("/buy/tea").json()
        assert_enqueued(app, send_receipt.module_path)

        assert drain(app) == 1

        self.assertEqual(Order.objects.get().receipt, "1 tea")
        result = send_receipt.get_result(answer["receipt"])
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", "1 tea"))

    def test_nothing_is_left_of_other_tests(self):
        self.assertEqual(app.jobs(), [])
        self.client.get("/buy/coffee")
        self.assertEqual(len(app.jobs()), 1)


class InATransaction(BuyTea, TestCase):
    pass


class Committed(BuyTea, TransactionTestCase):
    pass


class AlsoCommitted(BuyTea, TransactionTestCase):
    pass
