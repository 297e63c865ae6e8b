"""The demo's data."""

from __future__ import annotations

from jetcluster.cli.demo.orders import make_orders


def test_orders_are_the_same_in_every_run_and_all_differ() -> None:
    orders = make_orders(500)
    assert orders == make_orders(500)
    assert len({order.payload for order in orders}) == 500
    assert all(order.subject.startswith("orders.") for order in orders)
