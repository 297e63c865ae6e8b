"""/subsz: the subscription index of all accounts. Also the lists of subscriptions in /connz and /subsz."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from jetcluster.budget import Steps
from jetcluster.monitor.source import ROWS_PER_STEP, Json, Query, QueryError, number, subs_detail
from jetcluster.monitor.view import links_of, now_text, text
from jetcluster.node.node import Node
from jetcluster.protocol import subjects
from jetcluster.server.accounts.subscription import ClientSubscription, LocalSubscription, RemoteInterest

if TYPE_CHECKING:
    from jetcluster.protocol.sublist import Sublist
    from jetcluster.server.accounts.route import Route
    from jetcluster.server.accounts.router import Router
    from jetcluster.server.accounts.subscription import AnySubscription


def detail(subscription: LocalSubscription, *, account: str = "") -> Json:
    """Returns a subscription as an object. The server's own subscriptions have no sid, no counts, and cid 0."""
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
    """Returns the `subscriptions_list` or `subscriptions_list_detail` member; {} without subscriptions."""
    shown: list[Json | str] = []
    for some in portions(subscriptions):
        shown += [detail(s) for s in some] if detailed else [text(s.subject) for s in some]
        yield
    if not shown:
        return {}
    return {"subscriptions_list_detail" if detailed else "subscriptions_list": shown}


def portions(subscriptions: list[ClientSubscription]) -> Iterator[list[ClientSubscription]]:
    """Yields portions of the list, one for each step."""
    for start in range(0, len(subscriptions), ROWS_PER_STEP):
        yield subscriptions[start : start + ROWS_PER_STEP]


DEFAULT_LIMIT = 1024


def subsz_steps(node: Node, query: Query) -> Steps[Json]:
    """Raises QueryError."""
    listed, _ = subs_detail(query)
    offset, limit = number(query, "offset", 0), number(query, "limit", DEFAULT_LIMIT)
    test = query.get("test", "").encode()
    if test and not subjects.is_valid_literal(test):
        raise QueryError(f"invalid test subject, must be valid publish subject: {query['test']}")
    account = query.get("acc", "")
    routers = [router for router in node.server.accounts if not account or router.account == account]
    found = {"server_id": node.server.server_id, "now": now_text(node), **index_statistics(node, routers)}
    # As nats-server: the total is counted for a list only, because that visits every subscription.
    total, page = (yield from _page(routers, test, offset, limit, listed=listed)) if listed or test else (0, [])
    found |= {"total": total, "offset": offset, "limit": limit}
    if page:
        found["subscriptions_list"] = page
    return found


def index_statistics(node: Node, routers: list[Router]) -> Json:
    """Returns the added-up statistics of the subject indexes of some accounts."""
    indexes = [router.index for router in routers]
    misses = sum(index.matches for index in indexes)
    # The read loop's cached lookup, the hottest line of the server, counts nothing. Every message from a client or a
    # route is looked up once, so the number of messages is the number of lookups.
    lookups = max(node.server.clients.totals().in_msgs + sum(link.stats.in_msgs for link in links_of(node)), misses)
    fanouts = [route.takers for index in indexes for route in index.literals.values()]
    return {
        "num_subscriptions": sum(index.count for index in indexes),
        "num_cache": sum(len(index.literals) + len(index.prefixes) for index in indexes),
        "num_inserts": sum(index.inserts for index in indexes),
        "num_removes": sum(index.removes for index in indexes),
        "num_matches": lookups,
        "cache_hit_rate": 1 - misses / lookups if lookups else 0.0,
        "max_fanout": max(fanouts, default=0),
        "avg_fanout": sum(fanouts) / len(fanouts) if fanouts else 0.0,
    }


def _page(
    routers: list[Router], test: bytes, offset: int, limit: int, *, listed: bool
) -> Steps[tuple[int, list[Json]]]:
    """(total, page if `listed`) of the subscriptions of this node; the interest of peers is in /routez."""
    total, page = 0, []
    for router in routers:
        for some in in_portions(router.index):
            for subscription in some:
                if isinstance(subscription, RemoteInterest) or (
                    test and not subjects.matches(test, subscription.subject)
                ):
                    continue
                if listed and offset <= total < offset + limit:
                    page.append(detail(subscription, account=router.account))
                total += 1
            yield
    return total, page


def in_portions(index: Sublist[AnySubscription, Route]) -> Generator[list[AnySubscription], None, None]:
    """The subscriptions of a subject index, `ROWS_PER_STEP` or a few more at a time; in between it may change."""
    some: list[AnySubscription] = []
    for few in index.portions():
        if len(few) > ROWS_PER_STEP:
            for start in range(0, len(few), ROWS_PER_STEP):
                yield few[start : start + ROWS_PER_STEP]
            continue
        some += few
        if len(some) >= ROWS_PER_STEP:
            yield some
            some = []
    if some:
        yield some
