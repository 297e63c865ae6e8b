"""Subscriptions as JSON: lists in /connz, /routez and /subsz."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jetcluster.budget import Steps
from jetcluster.monitor.source import ROWS, Json
from jetcluster.monitor.view import text


def detail(subscription: Any, *, account: str = "") -> Json:
    """A `ClientSubscription`, or an `InternalSubscription`: that has no sid, no counts, and cid 0."""
    found: Json = {"account": account, "account_tag": account} if account else {}
    found["subject"] = text(subscription.subject)
    if subscription.queue:
        found["qgroup"] = text(subscription.queue)
    owner = getattr(subscription, "owner", None)
    found["sid"] = text(subscription.sid) if owner is not None else ""
    found["msgs"] = subscription.delivered if owner is not None else 0
    if owner is not None and subscription.max:
        found["max"] = subscription.max
    found["cid"] = owner.cid if owner is not None else 0
    return found


def lists(subscriptions: list[Any], *, detailed: bool) -> Steps[Json]:
    """The `subscriptions_list` or `subscriptions_list_detail` member; nothing when there are none."""
    shown: list[Any] = []
    for some in portions(subscriptions):
        shown += [detail(s) for s in some] if detailed else [text(s.subject) for s in some]
        yield
    if not shown:
        return {}
    return {"subscriptions_list_detail" if detailed else "subscriptions_list": shown}


def portions(subscriptions: list[Any]) -> Iterator[list[Any]]:
    """For a step each."""
    for start in range(0, len(subscriptions), ROWS):
        yield subscriptions[start : start + ROWS]
