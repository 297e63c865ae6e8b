"""Requests of clients of a node without JetStream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api.relay import NOTICE, ApiRelay, decode, encode, serve_relayed
from jetcluster.api.request import GUARDED
from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.account_options import AuthorizationOptions, PermissionOptions, SubjectLists, UserOptions
from jetcluster.config.options import Options
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import FrameError
from testkit.server_rig import ServerRig
from testkit.twins.time import SeededRng


class FakeMesh:
    """A mesh by hand: keeps what is sent to peers, and tells of peers that tests bring up and down."""

    def __init__(self) -> None:
        self.peers: dict[str, NodeInfo] = {}
        self.sent: list[tuple[str | None, str, bytes]] = []
        self.handlers: dict[str, Any] = {}
        self.listeners: list[Any] = []

    def on_peers(self, up: Any, down: Any) -> None:
        self.listeners.append((up, down))

    def on_notice(self, kind: str, handler: Any, *, strangers: bool = False) -> None:
        assert strangers, "nodes without JetStream are no members"
        self.handlers[kind] = handler

    def notify(self, peer: str | None, kind: str, payload: bytes) -> None:
        self.sent.append((peer, kind, payload))

    def up(self, peer: str, *, jetstream: bool) -> None:
        info = NodeInfo(
            peer_id=peer, name=peer, boot_id="b", cluster_url="", client_url="", tags=(), jetstream=jetstream
        )
        self.peers[peer] = info
        for up, _ in self.listeners:
            up(info)

    def down(self, peer: str) -> None:
        info = self.peers.pop(peer)
        for _, down in self.listeners:
            down(info)


def relay(rig: ServerRig, mesh: FakeMesh, elsewhere: bytes = b"", domain: str = "") -> ApiRelay:
    made = ApiRelay(
        mesh,  # type: ignore[arg-type]
        rig.server.account,
        SeededRng(1),
        domain=domain,
        system_account="$SYS",
        elsewhere=lambda account, subject: subject == elsewhere,
    )
    made.serve(["$G", "$SYS"])
    return made


def request(rig: ServerRig, subject: bytes, reply: bytes = b"_INBOX.1") -> int:
    return rig.router.ask(subject, b"{}", reply, b"NATS/1.0\r\nA: 1\r\n\r\n")


def test_a_request_goes_to_a_peer_with_jetstream_as_it_came() -> None:
    rig, mesh = ServerRig(), FakeMesh()
    relay(rig, mesh, domain="hub")
    assert not request(rig, b"$JS.API.INFO"), "nobody has JetStream: the client sees 503"
    mesh.up("AAAAAAAA", jetstream=False)
    assert not request(rig, b"$JS.API.INFO")
    mesh.up("BBBBBBBB", jetstream=True)
    assert request(rig, b"$JS.API.STREAM.CREATE.S") == request(rig, b"$JS.hub.API.INFO") == 1
    (peer, kind, notice), (_, _, second) = mesh.sent
    assert (peer, kind) == ("BBBBBBBB", NOTICE)
    assert decode(notice) == ("$G", b"$JS.API.STREAM.CREATE.S", b"_INBOX.1", b"NATS/1.0\r\nA: 1\r\n\r\n", b"{}")
    assert decode(second)[1] == b"$JS.hub.API.INFO"
    assert request(rig, b"$OBJ.bucket") == 1, "the object service of another node"
    assert decode(mesh.sent.pop()[2])[1] == b"$OBJ.bucket"
    assert not request(rig, b"$OBJ.bucket.chunks.n"), "the stream itself is found by its subjects"
    mesh.down("BBBBBBBB")
    assert not request(rig, b"$JS.API.INFO")
    assert len(mesh.sent) == 2


def test_what_replicas_answer_themselves_is_not_handed_over() -> None:
    rig, mesh = ServerRig(), FakeMesh()
    relay(rig, mesh)
    mesh.up("BBBBBBBB", jetstream=True)
    for subject in (b"$JS.API.DIRECT.GET.S", b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"$JS.API.META.LEADER.STEPDOWN"):
        assert not request(rig, subject), subject
    assert not mesh.sent
    rig.server.account("$SYS").ask(b"$JS.API.META.LEADER.STEPDOWN", b"", b"_INBOX.1")
    assert decode(mesh.sent[0][2])[0] == "$SYS"


def test_accounts_of_a_reload_are_served_too_and_none_twice() -> None:
    rig, mesh = ServerRig(), FakeMesh()
    made = relay(rig, mesh)
    mesh.up("BBBBBBBB", jetstream=True)
    made.serve(["$G", "A"])
    assert request(rig, b"$JS.API.INFO") == 1
    assert rig.server.account("A").ask(b"$JS.API.INFO", b"", b"r") == 1
    assert len(mesh.sent) == 2


def test_a_request_without_an_answer_or_to_another_account_is_not_handed_over() -> None:
    rig, mesh = ServerRig(), FakeMesh()
    relay(rig, mesh, elsewhere=b"$JS.API.INFO")
    mesh.up("BBBBBBBB", jetstream=True)
    request(rig, b"$JS.API.INFO")
    request(rig, b"$JS.API.STREAM.NAMES", b"")
    assert not mesh.sent


def served(rig: ServerRig, mesh: FakeMesh) -> None:
    account = rig.server.account
    serve_relayed(mesh, account, lambda peer: peer == "MMMMMMMM", domain="hub", system_account="$SYS")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("account", "subject", "anybody"),
    [
        ("$G", b"$JS.API.STREAM.DELETE.S", True), ("$G", b"$JS.hub.API.INFO", True), ("$G", b"$JS.API.$OBJ.x", True),
        ("$G", b"$OBJ.x", True), ("$G", b"$OBJ.x.info.y", False), ("$SYS", b"$OBJ.x", False),
        ("$SYS", b"$JS.API.SERVER.REMOVE", False), ("$SYS", b"$JS.API.STREAM.NAMES", False),
        ("$G", b"$JS.API.SERVER.REMOVE", False), ("$G", b"$JS.hub.API.META.LEADER.STEPDOWN", False),
        ("$G", b"$JS.API.ACCOUNT.PURGE.A", False), ("$G", b"$SYS.REQ.SERVER.X.RELOAD", False), ("$G", b"any", False),
    ],
)  # fmt: skip
def test_strangers_hand_over_what_clients_may_ask_and_nothing_of_the_cluster(
    account: str, subject: bytes, anybody: bool
) -> None:
    rig, mesh = ServerRig(), FakeMesh()
    served(rig, mesh)
    got: list[bytes] = []
    answers: list[bytes] = []
    bus = rig.server.account(account)
    bus.subscribe(subject, lambda *message: got.append(message[0]), local_only=True)
    bus.subscribe(b"_INBOX.1", lambda *message: answers.append(message[3]))
    mesh.handlers[NOTICE]("CCCCCCCC", encode(account, subject, b"_INBOX.1", b"", b""))
    assert got == ([subject] if anybody else [])
    assert [json.loads(answer)["error"]["code"] for answer in answers] == ([] if anybody else [403])
    mesh.handlers[NOTICE]("MMMMMMMM", encode(account, subject, b"_INBOX.1", b"", b""))
    assert got == [subject] * (1 + anybody), "members are believed"


def test_the_other_side_publishes_it() -> None:
    rig, mesh = ServerRig(), FakeMesh()
    served(rig, mesh)
    got: list[tuple[bytes, ...]] = []
    rig.router.subscribe(b"$JS.API.>", lambda *message: got.append(message[:4]), local_only=True)
    notice = encode("$G", b"$JS.API.INFO", b"r", b"h", b"p")
    mesh.handlers[NOTICE]("CCCCCCCC", notice)
    assert got == [(b"$JS.API.INFO", b"r", b"h", b"p")]
    for cut in (b"", notice[:6], notice[:20]):
        with pytest.raises(FrameError):
            mesh.handlers[NOTICE]("CCCCCCCC", cut)
    assert len(got) == 1


@pytest.mark.parametrize("long", ["account", "subject", "reply"])
def test_what_does_not_fit_is_refused(long: str) -> None:
    fields = {"account": b"a", "subject": b"s", "reply": b"r", long: b"x" * 65_536}
    with pytest.raises(ValueError, match="64 KiB"):
        encode(fields["account"].decode(), fields["subject"], fields["reply"], b"", b"")


ANN = UserOptions(
    "ann", "a", permissions=PermissionOptions(SubjectLists(["$JS.API.>", "$JS.hub.API.>", "$KV.mine.>", "$OBJ.*"]))
)
CREATE, SNAPSHOT = b"$JS.API.CONSUMER.CREATE.S.c", b"$JS.API.STREAM.SNAPSHOT.S"
TARGETS: list[tuple[bytes, bytes, int]] = [
    (CREATE, b'{"config":{"deliver_subject":"$KV.other.k"}}', 10112),
    (CREATE, b'{"CONFIG":{"Deliver_Subject":"$KV.other.k","deliver_subject":"a"}}', 10112),
    (CREATE, b'{"config":{"deliver_subject":"a"},"Config":{"deliver_subject":"$SYS.x"}}', 10112),
    (b"$JS.hub.API.CONSUMER.DURABLE.CREATE.S.c", b'{"config":{"deliver_subject":"\\u0024SYS.x"}}', 10112),
    (SNAPSHOT, b'{"deliver_subject":"$KV.other.k"}', 10015),
    (CREATE, b'{"config":{"deliver_subject":"$KV.mine.k"}}', 0),
    (CREATE, b'{"config":{"deliver_subject":"_INBOX.7","metadata":{"deliver_subject":"$KV.other.k"}}}', 0),
    (CREATE, b'{"deliver_subject":"$KV.other.k"}', 0),  # no such key: it delivers nowhere
    (CREATE, b'{"config":{"dead_letter":{"subject":"$KV.other.k"}}}', 10052),
    (CREATE, b'{"Config":{"Dead_Letter":{"Subject":"$KV.{subject}"}}}', 10052),
    (CREATE, b'{"config":{"metadata":{"jetcluster.dead_letter.subject":"$KV.other.{subject}"}}}', 10052),
    (CREATE, b'{"config":{"metadata":{"jetcluster.dead\\u005fletter.subject":"$KV.other"}}}', 10052),
    (CREATE, b'{"config":{"dead_letter":{"subject":"$OBJ.{stream}"}}}', 0),
    (CREATE, b'{"config":{"dead_letter":{"subject":"$OBJ.{subject}"}}}', 10052),
    (CREATE, b'{"config":{"deliver_subject":"a","dead_letter":{"subject":"$KV.other.k"}}}', 10052),
    (b"$JS.hub.API.CONSUMER.DURABLE.CREATE.S.c", b'{"config":{"dead_letter":{"subject":"$KV.other.k"}}}', 10052),
    (CREATE, b'{"config":{"dead_letter":{"subject":"$KV.mine.{stream}.{subject}"}}}', 0),
    (CREATE, b'{"config":{"dead_letter":{"subject":"dead.{subject}"},"metadata":{"subject":"$KV.other"}}}', 0),
    (SNAPSHOT, b'{"deliver_subject":"$KV.mine.k"}', 0),
    (b"$JS.API.STREAM.CREATE.S", b'{"deliver_subject":"$KV.other.k"}', 0),
    (b"$JS.API.STREAM.CREATE.S", b'{"republish":{"src":"a","dest":"$KV.other.k"}}', 10052),
    (b"$JS.API.STREAM.CREATE.S", b'{"republish":{"src":"a.*","dest":"$KV.mine.{{wildcard(1)}}"}}', 0),
    (b"$JS.API.STREAM.RESTORE.S", b'{"config":{"republish":{"src":"a","dest":"$KV.other.k"}}}', 10052),
    (b"$OBJ.b", b'{"name":"x","deliver_subject":"$KV.other.k"}', 11007),
    (CREATE, b'{"config":{"deliver_subject":"$KV.other.k"', 0),  # refused where it is decoded
]


@pytest.mark.parametrize(("subject", "payload", "code"), TARGETS)
def test_nobody_has_the_other_node_deliver_where_he_may_not_publish(subject: bytes, payload: bytes, code: int) -> None:
    rig = ServerRig(Authenticator(Options(authorization=AuthorizationOptions(users=[ANN]))))
    mesh = FakeMesh()
    relay(rig, mesh, domain="hub")
    mesh.up("BBBBBBBB", jetstream=True)
    client = rig.client(b"SUB r 1", connect=b'CONNECT {"user":"ann","pass":"a","verbose":false}')
    answer = client.ask(b"PUB %b r %d" % (subject, len(payload)), payload)
    assert (answer != b"", len(mesh.sent)) == ((True, 0) if code else (False, 1))
    assert b'"err_code":%d' % code in answer or not code
    # The server itself, and another account's client, are not judged by what a client may.
    mesh.sent.clear()
    assert rig.router.ask(subject, payload, b"r") == 1
    assert len(mesh.sent) == 1
    # What it publishes without asking is no request.
    rig.router.publish(subject, payload, b"r")
    assert len(mesh.sent) == 1


@pytest.mark.parametrize(("target", "guarded"), [("$KV.{{wildcard(1)}}.k", True), ("$KV.mine.{{wildcard(1)}}", False)])
def test_where_a_stream_republishes_to_already_it_may_go_on_to(target: str, guarded: bool) -> None:
    rig = ServerRig(Authenticator(Options(authorization=AuthorizationOptions(users=[ANN]))))
    mesh = FakeMesh()
    relay(rig, mesh)
    mesh.up("BBBBBBBB", jetstream=True)
    payload = json.dumps({"republish": {"src": "a.*", "dest": target}}).encode()
    client = rig.client(b"SUB r 1", connect=b'CONNECT {"user":"ann","pass":"a","verbose":false}')
    assert client.ask(b"PUB $JS.API.STREAM.UPDATE.S r %d" % len(payload), payload) == b""
    # The node that has the stream refuses what is new in it.
    ((*_, notice),) = mesh.sent
    assert (GUARDED in decode(notice)[3]) == guarded
