"""Removing many subscriptions of one client at once, which must not keep the loop: there may be a million."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from jetcluster.budget import BusyError, LoopBudget, Steps
from jetcluster.server.subscription import ClientSubscription

if TYPE_CHECKING:
    from jetcluster.server.router import Router

log = logging.getLogger("jetcluster.server")

FEW: Final = 256
"""So many are removed at once."""
PER_STEP: Final = 32


def remove(budget: LoopBudget, router: Router, subscriptions: Iterable[ClientSubscription]) -> None:
    """Takes them out of the router's index, in steps if they are many. They take nothing from now on."""
    found = [subscription for subscription in subscriptions if not subscription.closed]
    if len(found) <= FEW:
        for subscription in found:
            router.remove_client(subscription)
        return
    for subscription in found:
        subscription.closed = True
    try:
        budget.start(router.account, _steps(router, found), _done, _failed)
    except BusyError:
        for _ in _steps(router, found):
            pass


def _steps(router: Router, subscriptions: list[ClientSubscription]) -> Steps[None]:
    for number, subscription in enumerate(subscriptions):
        router.take_out(subscription)
        if number % PER_STEP == PER_STEP - 1:
            yield


def _done(_: None) -> None:
    """Nobody waits for it."""


def _failed(error: Exception) -> None:
    log.error("subscriptions of a connection could not be removed", exc_info=error)
