"""Subscriptions as JSON: lists in /connz, /routez and /subsz."""

from __future__ import annotations

from collections.abc import Iterator

from jetcluster.budget import Steps
from jetcluster.monitor.source import ROWS, Json
from jetcluster.monitor.view import text
from jetcluster.server.accounts.subscription import ClientSubscription, LocalSubscription


def detail(subscription: LocalSubscription, *, account: str = "") -> Json:
    """One of the server itself has no sid, no counts, and cid 0."""
    found: Json = {"account": account, "account_tag": account} if account else {}
    found["subject"] = text(subscription.subject)
    if subscription.queue:
        found["qgroup"] = text(subscription.queue)
    if not isinstance(subscription, ClientSubscription):
        return found | {"sid": "", "msgs": 0, "cid": 0}
    found |= {"sid": text(subscription.sid), "msgs": subscription.delivered}
    if subscription.max:
        found["max"] = subscription.max
    found["cid"] = subscription.owner.cid
    return found


def lists(subscriptions: list[ClientSubscription], *, detailed: bool) -> Steps[Json]:
    """The `subscriptions_list` or `subscriptions_list_detail` member; nothing when there are none."""
    shown: list[Json | str] = []
    for some in portions(subscriptions):
        shown += [detail(s) for s in some] if detailed else [text(s.subject) for s in some]
        yield
    if not shown:
        return {}
    return {"subscriptions_list_detail" if detailed else "subscriptions_list": shown}


def portions(subscriptions: list[ClientSubscription]) -> Iterator[list[ClientSubscription]]:
    """For a step each."""
    for start in range(0, len(subscriptions), ROWS):
        yield subscriptions[start : start + ROWS]
