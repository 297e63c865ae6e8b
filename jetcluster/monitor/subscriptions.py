"""Subscriptions as JSON: lists in /connz, /routez and /subsz."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.source import Json
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


def lists(subscriptions: list[Any], *, listed: bool, detailed: bool) -> Json:
    """The `subscriptions_list` or `subscriptions_list_detail` member; nothing when there are none."""
    if not listed or not subscriptions:
        return {}
    if detailed:
        return {"subscriptions_list_detail": [detail(s) for s in subscriptions]}
    return {"subscriptions_list": [text(s.subject) for s in subscriptions]}
