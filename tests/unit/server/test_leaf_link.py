"""Leaf links: the handshake, what is sent, who gets messages, and what must not cross."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jetcluster import budget
from jetcluster.auth.remote_login import signed_login
from jetcluster.config.options import LeafOptions, LeafRemoteOptions, LeafUserOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.model.account_hash import account_hash
from jetcluster.protocol.interest import FORWARDED
from jetcluster.server.accounts.subscription import ORIGIN
from jetcluster.server.leaf import link as link_module
from jetcluster.server.leaf.connection import LOOP_DELAY_SECONDS
from jetcluster.server.leaf.handshake import MAX_NAME_CHARS
from testkit.certificates import Authority
from testkit.server_rig import FakePeer, FakeTransport, RealTime
from tests.unit.server.leaf_rig import HELLO, LeafRig, mark_of

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


async def test_the_accepting_end_speaks_first_and_lists_what_it_wants() -> None:
    leaf_rig = LeafRig(domain="hub", server_name="H")
    leaf_rig.rig.client(b"SUB a.b 1", b"SUB a.b 2", b"SUB w q 3", b"SUB w q 4")
    end = leaf_rig.open()
    verb, _, text = end.read().partition(b" ")
    info = json.loads(text)
    assert verb == b"INFO"
    assert info["nonce"]
    assert (info["auth_required"], info["domain"], info["info_on_connect"]) == (True, "hub", True)
    end.send(b"CONNECT " + json.dumps(HELLO).encode() + b"\r\n")
    lines = end.read().split(b"\r\n")
    second = json.loads(lines[0].partition(b" ")[2])
    assert (second["connect_info"], second["remote_account"], "nonce" in second) == (True, "$G", False)
    assert {b"LS+ a.b", b"LS+ w q 2", b"LS+ $JS.hub.API.STREAM.>", b"LS+ " + mark_of(leaf_rig)} <= set(lines)


async def test_the_connecting_end_answers_without_lang() -> None:
    leaf_rig = LeafRig(domain="edge", server_name="L")
    end = leaf_rig.open(LeafRemoteOptions(urls=["nats://u:p@h:7422"], deny_imports=["x.>"]))
    assert end.read() == b""
    end.send(b'INFO {"server_id":"NHUB","server_name":"H","leafnode_urls":[],"info_on_connect":true}\r\n')
    verb, _, text = end.read().partition(b" ")
    connect = json.loads(text)
    assert verb == b"CONNECT"
    assert "lang" not in connect
    assert (connect["user"], connect["pass"], connect["cluster"], connect["deny_pub"]) == ("u", "p", "L", ["x.>"])
    assert leaf_rig.leafnodes.links == []
    end.send(b'INFO {"connect_info":true,"remote_account":"$G"}\r\n')
    assert leaf_rig.leafnodes.links == [end.link]
    assert b"LS+ " + mark_of(leaf_rig) in end.read()


@pytest.mark.parametrize(
    ("url", "tls", "offer", "reason"),
    [
        ("nats://h", TlsOptions(), {}, "the other end has no TLS"),
        ("tls://u:p@h", None, {}, "the other end has no TLS"),
        ("nats://u:p@h", None, {"tls_required": True, "tls_verify": True}, "wants a certificate of this one"),
    ],
)
async def test_nothing_is_sent_to_who_has_not_the_tls_that_is_wanted(
    url: str, tls: TlsOptions | None, offer: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    leaf_rig = LeafRig()
    end = leaf_rig.open(LeafRemoteOptions(urls=[url], tls=tls))
    first = {"server_id": "NHUB", "server_name": "H", "leafnode_urls": [], "info_on_connect": True} | offer
    end.send(b"INFO " + json.dumps(first).encode() + b"\r\n")
    assert b"CONNECT" not in end.read()
    assert end.link.close_reason == "TLS Handshake Failure"
    assert reason in caplog.text


async def test_nothing_is_obeyed_before_the_handshake(tmp_path: Path) -> None:
    cert, key = map(str, Authority(tmp_path).issue("hub"))
    tls = TlsOptions(cert_file=cert, key_file=key)
    leaf_rig = LeafRig(leafnodes=LeafOptions(port=1, tls=tls, users=[LeafUserOptions("u", "p")]))
    end = leaf_rig.open()
    end.send(b"CONNECT " + json.dumps(HELLO | {"user": "u", "pass": "p"}).encode() + b"\r\n")
    assert end.link.close_reason == "TLS Handshake Failure"
    assert not end.link.joined


async def test_an_nkey_signs_the_hubs_nonce() -> None:
    nkey = signed_login("", SEED, b"")["nkey"]
    hub = LeafRig(leafnodes=LeafOptions(port=1, users=[LeafUserOptions("", "", "$G", nkey)]))
    leaf = LeafRig(server_name="L")
    above = hub.open()
    below = leaf.open(LeafRemoteOptions(urls=["nats://h"], nkey=SEED))
    below.send(above.read())
    connect = below.read()
    assert SEED.encode() not in connect
    above.send(connect)
    assert above.link.joined
    again = hub.open()
    again.send(connect)  # signed for another nonce
    assert again.link.close_reason == "Authentication Failure"


async def test_who_is_refused() -> None:
    leaf_rig = LeafRig(cluster_name="C", leafnodes=LeafOptions(port=1, users=[LeafUserOptions("u", "p")]))
    for hello, error in (
        ({"lang": "go"}, b"-ERR 'attempted to connect to leaf node port'"),
        ({"cluster": "C"}, b"-ERR 'remote leafnode has same cluster name'"),
        ({"user": "u", "pass": "wrong"}, b"-ERR 'Authorization Violation'"),
        ({}, b"-ERR 'Authorization Violation'"),
    ):
        end = leaf_rig.open()
        end.send(b"CONNECT " + json.dumps(HELLO | hello).encode() + b"\r\n")
        assert error in end.read()
        assert end.link.close_reason
    early = leaf_rig.open()
    early.send(b"LMSG a 1\r\nx\r\n")
    assert b"Authorization Violation" in early.read()
    assert leaf_rig.leaf(user="u", **{"pass": "p"}).link.joined


async def test_a_name_that_is_no_text_is_read_as_go_does(caplog: pytest.LogCaptureFixture) -> None:
    end = LeafRig().leaf(name="\ud800", cluster="\ud800", server_id="\ud800", **{"pass": "geheim"})
    assert end.link.joined and end.link.remote_name == "\ufffd" and end.link.remote_cluster == "\ufffd".encode()
    assert "error in" not in caplog.text


async def test_messages_go_both_ways_but_not_back(leaf_rig: LeafRig) -> None:
    end = leaf_rig.leaf()
    peer = leaf_rig.rig.client(b"SUB a.* 1")
    assert end.read() == b"LS+ a.*\r\n"
    end.send(b"LS+ a.>\r\nLS+ a.b\r\n")
    assert peer.ask(b"PUB a.b re 2", b"hi") == b"MSG a.b 1 re 2\r\nhi\r\n"
    assert end.read() == b"LMSG a.b re 2\r\nhi\r\n"  # one copy, although two subjects match
    end.send(b"HMSG a.b re 12 14\r\nNATS/1.0\r\n\r\nho\r\n")
    assert peer.read() == b"HMSG a.b 1 re 12 14\r\nNATS/1.0\r\n\r\nho\r\n"
    assert end.read() == b""
    end.send(b"LS- a.>\r\nLS- a.b\r\n")
    peer.send(b"PUB a.b 0", b"")
    assert end.read() == b""
    peer.send(b"UNSUB 1")
    assert end.read() == b"LS- a.*\r\n"


async def test_no_group_is_named_like_what_nodes_tell_each_other(leaf_rig: LeafRig) -> None:
    """On the way to another node such a name would be taken for the mark of a leaf that has the message already, or of
    one that was handed on."""
    end = leaf_rig.leaf()
    end.read()
    for mark in (b"\x00", b"\x01"):
        peer = leaf_rig.rig.client()
        assert peer.ask(b"SUB w %bL 1" % mark) == b"-ERR 'Invalid Subject'\r\n"
        end.send(b"LS+ w %bL 1\r\n" % mark)
    assert end.link.wanted == 0 and end.link.joined
    assert not leaf_rig.rig.router.has_interest(b"w")


async def test_queue_members_of_this_side_come_first(leaf_rig: LeafRig) -> None:
    end = leaf_rig.leaf()
    end.send(b"LS+ w q 5\r\nLS+ w\r\n")
    peer = leaf_rig.rig.client(b"SUB w q 1")
    end.read()
    assert peer.ask(b"PUB w 1", b"x") == b"MSG w 1 1\r\nx\r\n"
    assert end.read() == b"LMSG w 1\r\nx\r\n"  # its plain copy, without the group
    peer.send(b"UNSUB 1", b"PUB w re 1", b"x")
    assert end.read() == b"LS- w q\r\nLMSG w + re q 1\r\nx\r\n"
    # What the other end names groups for is taken by one of them; without names by none.
    peer.send(b"SUB w q 2")
    end.send(b"LMSG w 1\r\na\r\nLMSG w | q 1\r\nb\r\n")
    assert peer.read() == b"MSG w 2 1\r\nb\r\n"


async def test_a_hub_tells_its_leaves_of_each_other_a_spoke_only_of_itself() -> None:
    leaf_rig = LeafRig(cluster_name="C")
    node = FakePeer("n2")
    one, two, same = (
        leaf_rig.leaf(),
        leaf_rig.leaf(server_id="N2", cluster="M"),
        leaf_rig.leaf(server_id="N3", cluster="L"),
    )
    up = leaf_rig.hub()
    for end in (one, two, same, up):
        end.read()
    leaf_rig.router.peers.set_interest(node, b"far", None, 1)
    assert [end.read() for end in (one, two, same, up)] == [b"LS+ far\r\n"] * 3 + [b""]
    one.send(b"LS+ of.one\r\n")
    assert [end.read() for end in (one, two, same, up)] == [b"", b"LS+ of.one\r\n", b"", b"LS+ of.one\r\n"]
    up.send(b"LS+ of.hub\r\n")
    assert [end.read() for end in (one, two, same, up)] == [b"LS+ of.hub\r\n"] * 3 + [b""]
    wanted = [subject for subject, _, _ in leaf_rig.router.local.entries()]
    assert (b"of.one" in wanted, b"of.hub" in wanted) == (True, False)  # the mesh hears of leaves only
    one.link.abort("Client Closed")
    assert [end.read() for end in (two, up)] == [b"LS- of.one\r\n"] * 2
    leaf_rig.router.peers.drop_peer(node)
    assert two.read() == b"LS- far\r\n"


async def test_what_comes_from_a_leaf_crosses_the_mesh_once_and_with_its_origin() -> None:
    leaf_rig = LeafRig(cluster_name="C")
    node = FakePeer("n2")
    one, same, other = (
        leaf_rig.leaf(),
        leaf_rig.leaf(server_id="N3", cluster="L"),
        leaf_rig.leaf(server_id="N4", cluster="M"),
    )
    leaf_rig.router.peers.set_interest(node, b"a", None, 1)
    for end in (same, other):
        end.send(b"LS+ a\r\n")
    for end in (one, same, other):
        end.read()
    one.send(b"LMSG a 1\r\nx\r\n")
    assert node.sent == [("$G", b"a", b"", [ORIGIN + b"L"], b"", b"x")]
    assert [end.read() for end in (one, same, other)] == [b"", b"", b"LMSG a 1\r\nx\r\n"]
    # The same from another node's leaf: not to that leaf's cluster, and not to the mesh again.
    leaf_rig.router.deliver_from_peer(node, b"a", b"", [ORIGIN + b"M"], b"", b"y")
    assert [end.read() for end in (one, same, other)] == [b"", b"LMSG a 1\r\ny\r\n", b""]
    assert len(node.sent) == 1


async def test_what_comes_from_the_hub_stays_on_this_node() -> None:
    leaf_rig = LeafRig(cluster_name="C")
    node = FakePeer("n2")
    up = leaf_rig.hub()
    leaf_rig.router.peers.set_interest(node, b"a", None, 1)
    leaf_rig.router.peers.set_interest(node, b"a", b"q", 1)
    up.send(b"LMSG a 1\r\nx\r\n")
    assert node.sent == []
    # A group that has no member here any more is still served, by a node that has one.
    up.send(b"LMSG a | q 1\r\nx\r\n")
    assert node.sent == [("$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")]
    up.send(b"LS+ b\r\n")
    up.read()
    leaf_rig.router.deliver_from_peer(node, b"b", b"", [], b"", b"y")
    assert up.read() == b""  # the other node has its own link


async def test_leaves_get_the_urls_of_the_other_nodes(leaf_rig: LeafRig) -> None:
    end = leaf_rig.leaf()
    leaf_rig.leafnodes.set_neighbours(("b:7422", "c:7422"))
    verb, _, text = end.read().partition(b" ")
    assert verb == b"INFO"
    assert json.loads(text)["leafnode_urls"] == ["b:7422", "c:7422"]
    other = json.loads(leaf_rig.open().read().partition(b" ")[2])
    assert other["leafnode_urls"] == ["b:7422", "c:7422"]


async def test_a_loop_is_noticed(leaf_rig: LeafRig) -> None:
    end = leaf_rig.hub()
    end.send(b"LS+ " + mark_of(leaf_rig) + b"\r\n")
    text = b"-ERR 'Loop detected for leafnode account=\"$G\". Delaying attempt to reconnect for 30s'\r\n"
    assert end.read().endswith(text)
    assert end.link.retry_after == LOOP_DELAY_SECONDS
    told = leaf_rig.hub()
    told.send(text)
    assert told.link.retry_after == LOOP_DELAY_SECONDS


@pytest.mark.parametrize("target", [b"_INBOX.y", b"$JS.M.y"])  # the latter is where a mirror takes its messages
async def test_a_delivery_shows_its_own_subject_at_the_far_end(target: bytes, leaf_rig: LeafRig) -> None:
    end = leaf_rig.leaf()
    end.send(b"LS+ _INBOX.x\r\n")
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    leaf_rig.router.deliver_many(b"_INBOX.x", [(b"orders.1", ack, b"", b"x")])
    assert end.read() == b"LMSG _INBOX.x " + ack + b"@orders.1 1\r\nx\r\n"
    peer = leaf_rig.rig.client(b"SUB %b 7" % target)
    end.send(b"LMSG %b " % target + ack + b"@orders.1 1\r\nx\r\n")
    assert peer.read() == b"MSG orders.1 7 " + ack + b" 1\r\nx\r\n"


async def test_the_store_keeps_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last:
        def fileno(self) -> int:
            return 9

    monkeypatch.setattr(FakeTransport, "get_extra_info", lambda self, name, default=None: Last())
    leaf_rig = LeafRig()
    assert leaf_rig.leaf().link.joined
    leaf_rig.rig.server.crowd.watch = DescriptorWatch(lambda: 10, lambda: 9)
    refused = leaf_rig.open()
    leaf_rig.rig.time.advance(0)
    assert refused.link.close_reason == "Maximum Connections Exceeded" and refused.read() == b""
    assert leaf_rig.hub().link.joined, "what this server has asked for itself"


async def test_long_names_of_the_other_end_are_cut() -> None:
    end = LeafRig().leaf(name="n" * 5000, cluster="c" * 5000, domain="d" * 5000)
    assert {len(end.link.remote_name), len(end.link.remote_cluster), len(end.link.remote_domain)} == {MAX_NAME_CHARS}


async def test_a_new_link_of_the_same_server_ends_the_old_one(leaf_rig: LeafRig) -> None:
    old = leaf_rig.leaf()
    old.send(b"LS+ a\r\n")
    new = leaf_rig.leaf()
    assert old.link.close_reason == "Duplicate Remote LeafNode Connection"
    assert leaf_rig.leafnodes.links == [new.link]
    assert not leaf_rig.router.has_interest(b"a")


async def test_who_does_not_read_is_closed() -> None:
    leaf_rig = LeafRig(max_pending=100_000, max_payload=100_000)
    end = leaf_rig.leaf()
    end.send(b"LS+ a\r\n")
    end.transport.jammed = True
    for _ in range(5):
        leaf_rig.router.publish(b"a", b"x" * 50_000)
        leaf_rig.rig.time.advance(0)
    assert end.link.close_reason == "Slow Consumer (Pending Bytes)"
    assert not leaf_rig.router.has_interest(b"a")


@pytest.mark.parametrize(
    ("version", "is_let_in"),
    [("2.12.0", True), ("v2.12.1-beta.1", True), ("3.0.0", True), ("2.9.99", False), ("", False), ("new", False)],
)
async def test_leaves_of_an_old_version_are_refused(version: str, is_let_in: bool) -> None:
    leaf_rig = LeafRig(leafnodes=LeafOptions(port=1, min_version="2.12.0"))
    end = leaf_rig.open()
    end.read()
    end.send(b"CONNECT " + json.dumps(HELLO | {"version": version}).encode() + b"\r\n")
    answer = end.read()
    assert end.link.joined is is_let_in
    refusal = b"-ERR 'connection rejected since minimum version required is \"2.12.0\"'\r\n"
    assert (refusal in answer, end.link.close_reason == "Minimum Version Required") == (not is_let_in,) * 2


async def test_how_long_a_hub_may_keep_silent(leaf_rig: LeafRig) -> None:
    end = leaf_rig.open(LeafRemoteOptions(urls=["nats://h:7422"], first_info_timeout=0.5))
    leaf_rig.rig.time.advance(0.4)
    assert end.link.close_reason == ""
    leaf_rig.rig.time.advance(0.2)
    assert end.link.close_reason == "Authentication Timeout"


def wanted_by(lines: bytes) -> dict[bytes, bytes]:
    """Interest that an end has announced: weights, or b"" for plain interest."""
    found: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        words = line.split(b" ")
        if words[0] == b"LS+":
            found[b" ".join(words[1:3])] = b" ".join(words[3:])
        elif words[0] == b"LS-":
            found.pop(b" ".join(words[1:3]), None)
    return found


async def test_very_much_that_is_wanted_is_sent_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_DIRECT_SUBJECTS", 999)
    leaf_rig = LeafRig(rig=RealTime())
    client = leaf_rig.rig.client()
    for number in range(2000):
        client.send(b"SUB a.%d %d" % (number, number), b"SUB w.%d q m%d" % (number, number))
    monkeypatch.setattr(budget, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(budget, "QUANTUM_SECONDS", 0.0)  # one step a turn
    end = leaf_rig.open()
    end.send(b"CONNECT " + json.dumps(HELLO).encode() + b"\r\n")
    told = end.read()
    assert end.link.joined and b"LS+" not in told, "it is being noted"
    other = leaf_rig.rig.client(b"SUB w.5 q 1", b"SUB new.1 2")
    client.send(b"UNSUB 1999", b"UNSUB m1998", b"UNSUB 1")
    turns = 0
    while b"LS+ " not in told:
        told += end.read()
        turns += 1
    client.send(b"UNSUB 2", b"UNSUB 1997", b"UNSUB m3", b"SUB a.3 again")
    other.send(b"SUB w.6 q 3", b"SUB new.2 4")
    for _ in range(40):
        told += (piece := end.read())
        turns += bool(piece)
        assert piece.count(b"LS+") <= link_module.SUBJECTS_PER_STEP + 10
    assert turns > 4000 // link_module.SUBJECTS_PER_STEP
    expected = {b"a.%d" % n: b"" for n in range(2000) if n not in (1, 2, 1997, 1999)}
    expected |= {b"w.%d q" % n: b"2" if n in (5, 6) else b"1" for n in range(2000) if n not in (3, 1998)}
    expected |= {b"new.1": b"", b"new.2": b"", mark_of(leaf_rig): b""}
    assert wanted_by(told) == expected
    client.send(b"UNSUB 7", b"UNSUB again", b"UNSUB 3")
    assert wanted_by(told + end.read()).keys() == expected.keys() - {b"a.7", b"a.3"}
    end.link.connection_lost(None)
    assert not leaf_rig.router.leaf_links


async def test_a_link_that_ends_before_it_has_sent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_DIRECT_SUBJECTS", 999)
    leaf_rig = LeafRig()
    client = leaf_rig.rig.client(*[b"SUB a.%d %d" % (number, number) for number in range(2000)])
    monkeypatch.setattr(budget, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(budget, "QUANTUM_SECONDS", 0.0)
    end = leaf_rig.leaf()
    end.link.connection_lost(None)
    client.send(b"UNSUB 1500")
    for _ in range(20):
        end.read()
    assert not leaf_rig.router.leaf_links and not leaf_rig.rig.server.budget.jobs
    leaf_rig.rig.server.budget.jobs, most = budget.MAX_JOBS, budget.MAX_JOBS  # and where too much waits
    end = leaf_rig.leaf()
    assert not end.read()
    leaf_rig.rig.server.budget.jobs -= most
    told = b""
    for _ in range(20):
        leaf_rig.rig.time.advance(link_module.RETRY_SECONDS)
        told += end.read()
    assert len(wanted_by(told)) == 2000


async def test_a_link_that_ends_while_another_one_is_served_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interest that passes from one link to the other is judged as it was when the other one joined."""
    monkeypatch.setattr(link_module, "MAX_DIRECT_SUBJECTS", 99)
    leaf_rig = LeafRig(rig=RealTime())
    there, peer = [b"a.%d" % number for number in range(3 * link_module.SUBJECTS_PER_STEP)], FakePeer("P")
    for subject in there:
        leaf_rig.router.peers.set_interest(peer, subject, None, 1)
    gone = leaf_rig.leaf(server_id="N1", name="1", cluster="same")
    gone.send(*[b"LS+ g.%d\r\n" % number for number in range(200)])
    monkeypatch.setattr(budget, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(budget, "QUANTUM_SECONDS", 0.0)
    end = leaf_rig.open()
    end.send(b"CONNECT " + json.dumps(HELLO | {"server_id": "N2", "name": "2", "cluster": "same"}).encode() + b"\r\n")
    gone.link.connection_lost(None)
    assert gone.link not in leaf_rig.router.leaf_links and not end.link.close_reason
    told = b"".join(end.read() for _ in range(30))
    assert wanted_by(told).keys() == {mark_of(leaf_rig), *there}
    end.link.connection_lost(None)


async def test_a_link_that_ends_does_not_disturb_what_is_being_sent() -> None:
    leaf_rig = LeafRig(max_pending=1000)
    told: list[tuple[bytes, int]] = []
    leaf_rig.rig.server.accounts.listen(lambda account, subject, queue, count: told.append((subject, count)))
    slow, other = leaf_rig.leaf(), leaf_rig.leaf(server_id="N2", cluster="M")
    slow.send(b"LS+ %b q 1\r\n" % (b"w" * 500))
    slow.transport.jammed = True
    other.read()
    told.clear()
    leaf_rig.rig.client(*[b"SUB %b q %d" % (b"w" * 500, at) for at in range(4)])
    leaf_rig.rig.time.advance(0)
    assert slow.link.close_reason == "Slow Consumer (Pending Bytes)"
    # The slow one's own member goes last, and the others hear of the members that are left.
    assert [count for _, count in told] == [2, 3, 4, 5, 4]
    assert other.read().endswith(b"LS+ %b q 4\r\n" % (b"w" * 500))
    assert other.link.joined


async def test_links_have_an_interval_and_a_number_of_pings_of_their_own() -> None:
    leaf_rig = LeafRig(ping_interval=120.0, ping_max=2, leafnodes=LeafOptions(ping_interval=2.0, ping_max=1))
    end = leaf_rig.leaf()
    leaf_rig.rig.time.advance(2.5)
    assert b"PING" in end.read()
    leaf_rig.rig.time.advance(2.5)
    assert leaf_rig.leafnodes.links == [] and end.link.close_reason == "Stale Connection"


async def test_a_link_whose_other_end_is_silent_does_not_stand_for_long() -> None:
    """A cut leaves no trace but silence: with the interval of clients it would be listed for six minutes."""
    leaf_rig = LeafRig(ping_interval=120.0, ping_max=2)
    end = leaf_rig.leaf()
    leaf_rig.rig.time.advance(15)
    assert b"PING" in end.read()
    end.send(b"PONG\r\n")
    for _ in range(19):
        leaf_rig.rig.time.advance(1)
    assert leaf_rig.leafnodes.links == [end.link]
    for _ in range(20):
        leaf_rig.rig.time.advance(1)
    assert leaf_rig.leafnodes.links == [] and end.link.close_reason == "Stale Connection"


@pytest.mark.parametrize("account", ["$G", ""])
async def test_a_deny_list_that_has_the_other_ends_account_needs_it(account: str) -> None:
    """The function stood there as plain text, and denied nothing."""
    leaf_rig = LeafRig()
    remote = LeafRemoteOptions(urls=["nats://u:p@h:7422"], deny_imports=["{{account-hash-leaf-remote()}}.x"])
    end = leaf_rig.open(remote)
    end.send(b'INFO {"server_id":"H","leafnode_urls":[],"info_on_connect":true}\r\n')
    end.send(b"INFO " + json.dumps({"connect_info": True, "remote_account": account}).encode() + b"\r\n")
    assert leaf_rig.leafnodes.links == ([end.link] if account else [])
    if account:
        assert end.link.rules is not None and not end.link.rules.may_come(account_hash("$G").encode() + b".x")
        assert end.link.rules.may_come(b"other.x")
