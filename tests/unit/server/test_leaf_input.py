"""Input of a leaf link, valid and invalid."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.auth.authenticator import AuthResult
from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, SubjectLists
from jetcluster.protocol import subjects
from jetcluster.server.leaf.link import VIOLATION_LOG_SECONDS
from testkit.server_rig import FakeAuthenticator
from tests.unit.server.leaf_rig import LeafRig

ACK = b"$JS.ACK.S.C.1.2.3.4.5"


class Limited(FakeAuthenticator):
    """Any client may publish to a.> and subscribe to it, but for a.secret; `$OBJ.>` is denied by name, too."""

    def check(self, *_: Any, **__: Any) -> AuthResult:
        publish = SubjectLists(["a.>", "$JS.hub.API.>"], ["a.secret", "$OBJ.>"])
        rules = UserPermissions(PermissionOptions(publish, SubjectLists(["a.>"], ["a.secret"])))
        return AuthResult("$G", "", rules)


class Heard:
    """Collects the messages that an internal subscription to everything hears."""

    def __init__(self, leaf_rig: LeafRig) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        leaf_rig.router.subscribe(b">", lambda subject, reply, *_: self.messages.append((subject, reply)))


def limited() -> LeafRig:
    return LeafRig(authenticator=Limited(), domain="hub")


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        (b"a.x", [(b"a.x", b"")]),
        (b"a.x r", [(b"a.x", b"r")]),
        (b"a.secret", []),
        (b"b", []),
        (b"a..x", []),
        (b"..", []),
        (b"a.", []),
        (b"a.>.x", []),
        (b"a.x " + ACK, [(b"a.x", ACK)]),
        (b"a.x " + ACK + b"@a.y", [(b"a.y", ACK)]),
        (b"a.x " + ACK + b"@a.secret", []),
        (b"a.x " + ACK + b"@b", []),
        (b"a.x " + ACK + b"@a.>", []),
        (b"a.x " + ACK + b"@a.*", []),
        (b"a.x " + ACK + b"@..", []),
        (b"a.x " + ACK + b"@a..b", []),
        (b"a.x r..s", []),
        (b"a.x .r", []),
        (b"a.x r.>", []),
        (b"a.x $KV.b.k", []),
        (b"$JS.hub.API.INFO r", [(b"$JS.hub.API.INFO", b"r")]),
        (b"$JS.hub.API.DIRECT.GET.S.a.> r", [(b"$JS.hub.API.DIRECT.GET.S.a.>", b"r")]),
        (b"$JS.hub.API.DIRECT.GET.S.a " + ACK, []),
        (b"$JS.hub.API.$KV.b.k", [(b"$KV.b.k", b"")]),
        (b"$JS.hub.API.$OBJ.b r", []),
    ],
)
async def test_what_a_limited_link_brings_must_be_allowed_and_valid(
    line: bytes, heard: list[tuple[bytes, bytes]]
) -> None:
    leaf_rig = limited()
    found = Heard(leaf_rig)
    end = leaf_rig.leaf()
    end.send(b"LMSG %b 0\r\n\r\n" % line)
    assert found.messages == heard
    assert end.link.joined


async def test_a_link_without_limits_shows_valid_subjects_only(leaf_rig: LeafRig) -> None:
    found = Heard(leaf_rig)
    end = leaf_rig.leaf()
    for shown in (b"..", b"o.>", b"a..b", b"*", b"other.unrelated"):
        end.send(b"LMSG a.x %b@%b 0\r\n\r\n" % (ACK, shown))
    assert found.messages == [(b"other.unrelated", ACK)]


async def test_what_is_wanted_must_be_a_subject() -> None:
    end = LeafRig().leaf()
    for line in (b"a..b", b".a", b"a.", b">.a", b"a q..r 1", b"a >.q 1"):
        end.send(b"LS+ %b\r\n" % line)
    assert end.link.wanted == 0 and end.link.joined
    end.send(b"LS+ a.> q.r 1\r\nLS+ *\r\n")
    assert end.link.wanted == 2


async def test_violations_are_logged_but_not_each(caplog: pytest.LogCaptureFixture) -> None:
    leaf_rig = limited()
    end = leaf_rig.leaf()
    end.read()
    for _ in range(100):
        end.send(b"LMSG b.x 0\r\n\r\nLMSG a.x %b@c 0\r\n\r\n" % ACK)
    assert end.read() == b"-ERR 'Permissions Violation for Publish to \"b.x\"'\r\n"
    assert [record.getMessage() for record in caplog.records if "Violation" in record.getMessage()] == [
        f'leafnode cid {end.link.cid}: Publish Violation on "b.x" - Check other side configuration (1 so far)'
    ]
    leaf_rig.rig.time.advance(VIOLATION_LOG_SECONDS)
    end.send(b"LMSG a.x %b@c 0\r\n\r\n" % ACK)
    assert 'Violation on "c" - Check other side configuration (201 so far)' in caplog.text


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_a_leaf_says_the_link_lives_or_ends_and_nothing_gets_through(data: st.DataObject) -> None:
    """Random words where subjects, replies, queues and sizes stand, whole and cut."""
    word = st.sampled_from(
        [b"a.x", b"a.secret", b"b", b"..", b">", b"a.>", b"*", b"+", b"|", b"$JS.API.INFO", b"$JS.hub.API.INFO", ACK]
        + [ACK + b"@" + shown for shown in (b"a.y", b"a.secret", b"..", b">", b"")]
        + [b"", b"0", b"1", b"-1", b"999999999", b"1e3", b"\xff\xfe", b"\x00\x01", b"q", b"$LDS.x", b"_R_.a.b", b"{}"]
    )
    verb = st.sampled_from([b"LMSG", b"HMSG", b"LS+", b"LS-", b"PING", b"PONG", b"INFO", b"-ERR", b"CONNECT", b"lmsg"])
    line = st.builds(lambda v, words: b" ".join([v, *words]), verb, st.lists(word, max_size=6))
    body = st.sampled_from([b"\r\n", b"\r\n\r\n", b"\r\nx\r\n", b"\r\nNATS/1.0\r\n\r\n\r\n", b"\n", b""])
    said = data.draw(st.lists(st.builds(bytes.__add__, line, body), max_size=12))

    async def play() -> None:
        leaf_rig = limited()
        found = Heard(leaf_rig)
        end = leaf_rig.leaf()
        for piece in said:
            if not end.link.close_reason:
                end.send(piece)
        for subject, reply in found.messages:
            assert subjects.is_valid(subject) and b"secret" not in subject
            assert subject.startswith((b"a.", b"$JS.hub.API.")), said
            assert not reply or subjects.is_valid_literal(reply), said
            assert not reply.startswith((b"$JS.API", b"$KV")), said

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(play())
