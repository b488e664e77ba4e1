"""The order and the job that writes its receipt are committed together, or neither is."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from shop.models import Order
from shop.tasks import send_receipt


@transaction.atomic
def buy(request: HttpRequest, what: str) -> JsonResponse:  # noqa: ARG001 - Django's signature
    order = Order.objects.create(what=what)
    result = send_receipt.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "receipt": result.id})
