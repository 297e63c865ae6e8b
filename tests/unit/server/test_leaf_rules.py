"""Leaf nodes that may connect, and subjects that may cross their links."""

from __future__ import annotations

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, SubjectLists
from jetcluster.config.options import LeafOptions, LeafUserOptions
from jetcluster.server.leaf.link import split_ack
from jetcluster.server.leaf.rules import LeafLogins, LeafRules
from jetcluster.server.leaf.state import LeafState
from testkit.server_rig import Nobody, ServerRig
from tests.unit.server.leaf_rig import LeafRig


def logins(authenticator: Authenticator | None = None, *users: LeafUserOptions) -> LeafLogins:
    rig = ServerRig(authenticator, leafnodes=LeafOptions(users=list(users)))
    return LeafLogins(rig.server.parts, LeafState(rig.server.state))


def test_the_users_of_the_block_are_the_only_ones() -> None:
    own = logins(None, LeafUserOptions(user="u", password="p", account="A"))
    found = own.log_in({"user": "u", "pass": "p"}, b"", "10.0.0.1")
    assert found is not None and (found.account, found.user) == ("A", "u")
    assert own.log_in({"user": "u", "pass": "q"}, b"", "10.0.0.1") is None
    assert own.log_in({}, b"", "10.0.0.1") is None


def test_without_users_clients_rules_count() -> None:
    found = logins().log_in({}, b"", "10.0.0.1")
    assert found is not None and found.account == "$G"
    assert logins(Nobody()).log_in({}, b"", "10.0.0.1") is None


def test_only_a_password_that_is_hashed_takes_long() -> None:
    own = logins(None, LeafUserOptions(user="u", password="p"))
    assert own.slow_part({"user": "u", "pass": "p"}) is None and own.slow_part({"user": "v"}) is None
    slow = logins(None, LeafUserOptions(user="u", password="$2a$04$" + "x" * 53))
    assert slow.slow_part({"user": "u", "pass": "p"}) is not None


async def test_jetstream_stays_on_its_side_except_by_its_domain() -> None:
    leaf_rig = LeafRig(domain="edge")
    end = leaf_rig.hub(domain="hub")
    seen: list[bytes] = []
    for subject in (b"$JS.API.>", b"$KV.>", b"$JS.edge.API.STREAM.>"):
        leaf_rig.router.subscribe(subject, lambda subject, *_: seen.append(subject))
    assert end.read() == b""  # sent already with the API's parts
    end.send(b"LS+ >\r\nLS+ $JS.API.>\r\nLS+ $JS.hub.API.STREAM.>\r\n")
    for subject in (b"$JS.API.INFO", b"$KV.b.k", b"$OBJ.b.x", b"$JS.edge.API.INFO", b"$JS.hub.API.STREAM.NAMES"):
        leaf_rig.router.publish(subject, b"x")
    assert end.read() == b"LMSG $JS.hub.API.STREAM.NAMES 1\r\nx\r\n"
    seen.clear()
    for subject in (b"$JS.API.INFO", b"$KV.b.k", b"$JS.edge.API.STREAM.X", b"$JS.edge.API.$KV.b.k"):
        end.send(b"LMSG %b 1\r\nx\r\n" % subject)
    assert seen == [b"$JS.edge.API.STREAM.X", b"$KV.b.k"]


@pytest.mark.parametrize(
    ("reply", "split"),
    [
        (b"$JS.ACK.S.C.1.2.3.4.5@a.b", (b"$JS.ACK.S.C.1.2.3.4.5", b"a.b")),
        (b"$JS.ACK.S@x.C@y.1.2.3.4.5@a@b", (b"$JS.ACK.S@x.C@y.1.2.3.4.5", b"a@b")),
        (b"$JS.ACK.S@x.C.1.2.3.4.5", (b"$JS.ACK.S@x.C.1.2.3.4.5", b"z")),
        (b"$JS.ACK.S@x.C", (b"$JS.ACK.S@x.C", b"z")),
        (b"$JS.ACK.S.C.1.2.3.4.5@", (b"$JS.ACK.S.C.1.2.3.4.5@", b"z")),
    ],
)
def test_split_ack(reply: bytes, split: tuple[bytes, bytes]) -> None:
    assert split_ack(reply, b"z") == split


def test_configured_denials() -> None:
    rules = LeafRules(system=False, own_domain="", remote_domain="", deny_imports=["in.>"], deny_exports=["out.*"])
    assert (rules.may_come(b"in.a"), rules.may_come(b"out.a"), rules.may_come(b"in")) == (False, True, True)
    assert (rules.may_go(b"out.a"), rules.may_go(b"in.a")) == (False, True)
    assert (rules.may_announce(b"in.*"), rules.may_announce(b"*.a"), rules.may_want(b"out.x", None)) == (
        False,
        True,
        False,
    )
    lists = SubjectLists(["a.>"], ["a.secret"])
    bound = LeafRules(
        system=False, own_domain="", remote_domain="", permissions=UserPermissions(PermissionOptions(lists, lists))
    )
    schedule = b"NATS/1.0\r\nNats-Schedule-Target: %b\r\nNats-Schedule-Source: %b\r\n\r\n"
    refused = [
        bound.first_refused(b"a.x", b"a.x", b"", schedule % pair)
        for pair in ((b"a.b", b"a.c"), (b"b", b"a.c"), (b"a.b", b"a.secret"))
    ]
    assert refused == [None, b"b", b"a.secret"]
    assert rules.first_refused(b"a.x", b"a.x", b"", schedule % (b"b", b"a.secret")) is None
    replies = (b"_INBOX.1", b"$JS.ACK.S.C.1.1.1.1.0", b"$JS.API.STREAM.DELETE.S", b"$KV.b.x")
    assert [bound.may_be_answered_at(reply) for reply in replies] == [True, True, False, False]
    assert all(rules.may_be_answered_at(reply) for reply in replies)
    targets = (b"a.x", b"a.secret", b"$KV.b.x", b"a.>")
    assert [bound.may_deliver_to(target) for target in targets] == [True, False, False, False]
    assert all(rules.may_deliver_to(target) for target in targets)
    assert not LeafRules(system=True, own_domain="d", remote_domain="d").may_go(b"$NRG.x")
