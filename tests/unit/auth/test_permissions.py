from __future__ import annotations

import pytest

from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, ResponseOptions, SubjectLists


def permissions(
    pub: SubjectLists | None = None, sub: SubjectLists | None = None, responses: ResponseOptions | None = None
) -> UserPermissions:
    return UserPermissions(PermissionOptions(pub or SubjectLists(), sub or SubjectLists(), responses))


@pytest.mark.parametrize(
    ("allow", "deny", "subject", "allowed"),
    [
        (None, None, b"a", True),
        (["a", "b.*", "c.>"], None, b"a", True),
        (["a", "b.*", "c.>"], None, b"b.x", True),
        (["a", "b.*", "c.>"], None, b"b.x.y", False),
        (["a", "b.*", "c.>"], None, b"c.x.y", True),
        (["a", "b.*", "c.>"], None, b"c", False),
        ([], None, b"a", False),
        (None, ["a.>"], b"a.b", False),
        (None, ["a.>"], b"b", True),
        (["a.*"], ["a.b"], b"a.b", False),
        (["a.*"], ["a.b"], b"a.c", True),
    ],
)
def test_publish(allow: list[str] | None, deny: list[str] | None, subject: bytes, allowed: bool) -> None:
    assert permissions(pub=SubjectLists(allow, deny)).can_publish(subject) is allowed


@pytest.mark.parametrize(
    ("allow", "deny", "subject", "queue", "allowed"),
    [
        (None, None, b">", None, True),
        (["a.>"], None, b"a.*", None, True),
        (["a.*"], None, b"a.>", None, False),
        (["a.b"], None, b"a.*", None, False),
        # a subscription wider than a deny entry stands, its deliveries are filtered
        (None, ["a.b"], b"a.*", None, True),
        (None, ["a.*"], b"a.b", None, False),
        (None, ["a.*"], b"a.*", b"q", False),
        # queue entries
        (["a q"], None, b"a", b"q", True),
        (["a q"], None, b"a", b"p", False),
        (["a q"], None, b"a", None, False),
        (["a v*"], None, b"a", b"v1", False),
        (["a v1.>"], None, b"a", b"v1.x", True),
        (["a *.dev"], None, b"a", b"v2.dev", True),
        (["a"], None, b"a", b"any", True),
        (["a", "a q"], None, b"a", b"p", False),
        (["a", "a q"], None, b"a", None, True),
        (None, ["a q"], b"a", b"q", False),
        (None, ["a q"], b"a", b"p", True),
        (None, ["a q"], b"a", None, True),
        # the text of a wildcard subscription is matched too: nats-server refuses a.> where a.* is denied
        (None, ["a.*"], b"a.>", None, False),
        (None, ["a.* q"], b"a.>", b"q", False),
        (["a.* q"], None, b"a.>", b"q", False),
        (["a.> q"], None, b"a.>", b"q", True),
        (["a.>", "a.* q"], None, b"a.>", b"q", True),
    ],
)
def test_subscribe(
    allow: list[str] | None, deny: list[str] | None, subject: bytes, queue: bytes | None, allowed: bool
) -> None:
    assert permissions(sub=SubjectLists(allow, deny)).can_subscribe(subject, queue) is allowed


def test_deliveries_are_filtered_only_when_something_is_denied() -> None:
    assert permissions(sub=SubjectLists(["a.>"], None)).can_deliver is None
    can_deliver = permissions(sub=SubjectLists(None, ["a.b", "c.*"])).can_deliver
    assert can_deliver is not None
    assert not can_deliver(b"a.b", b"q")
    of_queue = permissions(sub=SubjectLists(None, ["a.b q"])).can_deliver
    assert of_queue is not None
    assert [of_queue(b"a.b", queue) for queue in (None, b"q", b"r")] == [True, False, True]
    assert [can_deliver(subject, None) for subject in (b"a.b", b"c.x", b"a.c", b"d")] == [False, False, True, True]


@pytest.mark.parametrize(
    ("allow", "deny", "subject", "allowed"),
    [
        (None, ["$JS.API.DIRECT.GET.S.b"], b"$JS.API.DIRECT.GET.LAST.S.b", False),
        (None, ["$JS.API.DIRECT.GET.S.b"], b"$JS.API.DIRECT.GET.LAST.S.a", True),
        (None, ["$JS.API.DIRECT.GET.LAST.>"], b"$JS.API.DIRECT.GET.LAST.S.a", False),
        (["$JS.API.DIRECT.GET.S.a"], None, b"$JS.API.DIRECT.GET.LAST.S.a", True),
        (["$JS.API.DIRECT.GET.S.a"], None, b"$JS.API.DIRECT.GET.LAST.S.b", False),
        (["$JS.API.DIRECT.GET.LAST.S.a"], None, b"$JS.API.DIRECT.GET.LAST.S.a", True),
        # a wildcard at the end is a filter there: all of it must be allowed, and none of it denied
        (["$JS.API.DIRECT.GET.S.a.*"], None, b"$JS.API.DIRECT.GET.S.a.>", False),
        (["$JS.API.DIRECT.GET.S.a.*"], None, b"$JS.API.DIRECT.GET.S.a.*", True),
        (["$JS.API.DIRECT.GET.S.a.*"], None, b"$JS.API.DIRECT.GET.LAST.S.a.>", False),
        (["$JS.API.DIRECT.GET.S.a.*"], None, b"$JS.API.DIRECT.GET.S.a.b", True),
        (["$JS.API.DIRECT.GET.S.*.b"], None, b"$JS.API.DIRECT.GET.S.*.b", True),
        (["$JS.API.DIRECT.GET.S.>"], ["$JS.API.DIRECT.GET.S.secret.>"], b"$JS.API.DIRECT.GET.S.>", False),
        (["$JS.API.DIRECT.GET.S.>"], ["$JS.API.DIRECT.GET.S.secret.>"], b"$JS.API.DIRECT.GET.S.*.x", False),
        (["$JS.API.DIRECT.GET.S.>"], ["$JS.API.DIRECT.GET.S.secret.>"], b"$JS.API.DIRECT.GET.S.a.>", True),
        (["$JS.API.CONSUMER.CREATE.S.*.a.*"], None, b"$JS.API.CONSUMER.CREATE.S.c.a.>", False),
        (["$JS.API.CONSUMER.CREATE.S.*.a.>"], None, b"$JS.API.CONSUMER.CREATE.S.c.a.>", True),
        (["$JS.API.>"], None, b"$JS.API.CONSUMER.CREATE.S.c.a.>", True),
        (["$JS.API.DIRECT.GET.S.a"], None, b"$JS.API.DIRECT.PEER.S.n1", False),
        (["$JS.API.DIRECT.GET.S"], None, b"$JS.API.DIRECT.PEER.S.n1", True),
        (None, ["$JS.API.DIRECT.GET.S"], b"$JS.API.DIRECT.PEER.S.n1", False),
        (["$JS.API.DIRECT_LEADER.GET.S"], None, b"$JS.API.DIRECT_LEADER.GET.S", True),
        (["$JS.API.DIRECT.GET.S"], None, b"$JS.API.DIRECT_LEADER.GET.S", True),
        (["$JS.API.>"], ["$JS.API.DIRECT.GET.S.a"], b"$JS.API.DIRECT_LEADER.GET.S.a", False),
    ],
)
def test_other_names_of_direct_get_are_no_way_around(
    allow: list[str] | None, deny: list[str] | None, subject: bytes, allowed: bool
) -> None:
    assert permissions(pub=SubjectLists(allow, deny)).can_publish(subject) is allowed


@pytest.mark.parametrize(
    ("allow", "deny", "subject", "allowed"),
    [
        (None, ["$OBJ.>"], b"$JS.API.$OBJ.b", False),
        (None, ["$OBJ.b"], b"$JS.API.$OBJ.b", False),
        (None, ["$OBJ.b"], b"$JS.API.$OBJ.c", True),
        (None, ["$OBJ.b"], b"$JS.API.$OBJ.b.info.x", True),
        (None, ["$OBJ.b.>"], b"$JS.API.$OBJ.b.info.x", False),
        (None, ["$JS.API.>"], b"$JS.API.$OBJ.b", False),
        (["$JS.API.>"], None, b"$JS.API.$OBJ.b", False),
        (["$OBJ.b"], None, b"$JS.API.$OBJ.b", True),
        (["$OBJ.b"], None, b"$JS.API.$OBJ.c", False),
    ],
)
def test_another_name_of_a_bucket_is_no_way_around(
    allow: list[str] | None, deny: list[str] | None, subject: bytes, allowed: bool
) -> None:
    assert permissions(pub=SubjectLists(allow, deny)).can_publish(subject) is allowed


def test_allow_responses_alone_denies_every_other_publish() -> None:
    only = permissions(responses=ResponseOptions(3, 60.0))
    assert only.allow_responses == (3, 60.0)
    assert not only.can_publish(b"a")
    both = permissions(pub=SubjectLists(["a"], None), responses=ResponseOptions())
    assert both.can_publish(b"a")
    assert both.allow_responses == (1, 120.0)
    assert permissions().allow_responses is None


@pytest.mark.parametrize(
    ("allow", "deny", "allowed"),
    [
        (["$JS.API.DIRECT.GET.S"], None, True),
        (["$JS.API.DIRECT.GET.T", "$JS.API.DIRECT.GET.S.>", "$JS.API.DIRECT.PEER.>"], None, False),
        (["$JS.API.>"], ["$JS.API.DIRECT.GET.S"], False),
        (["$JS.API.>"], ["$JS.API.DIRECT.GET.T"], True),
    ],
)
def test_a_direct_get_that_names_a_replica_is_a_direct_get(
    allow: list[str], deny: list[str] | None, allowed: bool
) -> None:
    mine = permissions(pub=SubjectLists(allow, deny))
    assert mine.can_publish(b"$JS.API.DIRECT.PEER.S.n1.example") is allowed
