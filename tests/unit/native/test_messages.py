"""Compiled frames and columns equal those of Python, and nothing malformed gets through either."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.mesh.frames import MAX_DELIVER_BYTES, FrameError, decode_msgs, encode_msgs
from jetcluster.mesh.peer_link import size_of
from jetcluster.protocol.bus import Outgoing
from jetcluster.server.accounts.subscription import frames_rendered, rendered
from testkit.native import python_alone
from testkit.server_rig import FakePeer, ServerRig
from tests.unit.native.takers import answers_taken

pytestmark = [
    pytest.mark.skipif(native.render is None, reason=f"no compiled loops: {native.why_pure}"),
    pytest.mark.thorough,
]

names = st.sampled_from([b"a", b"a.b", b"orders.eu.1", b"x" * 300])
replies = st.sampled_from([b"", b"", b"_INBOX.a.1", b"r"])
blocks = st.sampled_from([b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"])
payloads = st.one_of(st.sampled_from([b"", b"x", b"y" * 9, b"z" * 1000]), st.binary(max_size=120))
messages = st.lists(st.tuples(names, replies, blocks, payloads), min_size=1, max_size=40)


def by_python(function: object, *arguments: object) -> object:
    with python_alone():
        return function(*arguments)  # type: ignore[operator]


@settings(max_examples=400)
@given(messages, st.sampled_from([b" 1 ", b" 123456 "]), st.booleans())
def test_rendered(some: list[Outgoing], mid: bytes, shows_headers: bool) -> None:
    compiled, *sizes = rendered(mid, some, shows_headers)
    pieces, *expected = by_python(rendered, mid, some, shows_headers)  # type: ignore[misc]
    assert b"".join(compiled) == b"".join(pieces) and sizes == expected


@settings(max_examples=400)
@given(
    st.lists(st.tuples(blocks, payloads), max_size=20), st.sampled_from([b"MSG a 1 ", b"MSG a.b 22 "]), st.booleans()
)
def test_frames_of_a_reply(some: list[tuple[bytes, bytes]], lead: bytes, shows_headers: bool) -> None:
    compiled, size = frames_rendered(lead, some, shows_headers)
    pieces, expected = by_python(frames_rendered, lead, some, shows_headers)  # type: ignore[misc]
    assert b"".join(compiled) == b"".join(pieces) and size == expected


@settings(max_examples=400)
@given(messages)
def test_columns(some: list[Outgoing]) -> None:
    frame = encode_msgs("ACC", some)
    assert frame == by_python(encode_msgs, "ACC", some)
    assert decode_msgs(frame, 5, len(frame)) == ("ACC", some) == by_python(decode_msgs, frame, 5, len(frame))


subjects = st.sampled_from(
    [b"_INBOX.a.1", b"_INBOX.a.22", b"_INBOX.a.", b"_INBOX.a.x.y", b"_INBOX.b.1", b"plain.a", b"none", b"_INBOX.a"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(subjects, payloads), max_size=30))
def test_answers(answers: list[tuple[bytes, bytes]]) -> None:
    assert answers_taken(answers) == by_python(answers_taken, answers)


def _outcome(buffer: bytes, start: int, end: int) -> object:
    try:
        return decode_msgs(buffer, start, end)
    except FrameError as error:
        return str(error)


def test_damaged_columns_give_the_same_in_both() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        count = rng.randrange(1, 6)
        some = [
            (
                rng.choice([b"a", b"b.c"]),
                rng.choice([b"", b"r"]),
                rng.choice([b"", b"h" * 20]),
                rng.randbytes(rng.randrange(4)),
            )
            for _ in range(count)
        ]
        raw = bytearray(encode_msgs("A", some))
        for _ in range(rng.randrange(3)):
            raw[rng.randrange(5, len(raw))] = rng.choice([0, 1, 2, 3, 255, rng.randrange(256)])
        end = len(raw) if rng.random() < 0.7 else rng.randrange(5, len(raw) + 1)
        buffer = bytes(raw) + rng.randbytes(3)
        assert _outcome(buffer, 5, end) == by_python(_outcome, buffer, 5, end), (buffer, end)


def test_more_than_nodes_send_together_is_refused() -> None:
    assert native.split_columns is not None
    one = b"\x01\x00\x00\x00\x01s" + b"\x01\x00\x00\x00\x00" * 3
    assert native.split_columns(one, 0, len(one), 1000, 1000) is not None
    assert native.split_columns(one, 0, len(one), 1001, 1000) is None
    assert native.split_columns(one, 0, len(one) + 1, 1, MAX_DELIVER_BYTES) is None


@pytest.mark.parametrize(
    "wrong",
    [
        (b"a", b"", b""),
        (b"a", b"", b"", "text"),
        (b"a", None, b"", b""),
        None,
        (bytearray(b"a"), b"", b"", b""),
        [b"a", b"", b"", b""],
    ],
)
def test_what_is_no_message_is_an_error_and_no_crash(wrong: object) -> None:
    assert native.render is not None and native.join_columns is not None
    for function, before in ((native.render, (b" 1 ",)), (native.join_columns, ())):
        after = (True,) if before else ()
        with pytest.raises(TypeError):
            function(*before, [(b"a", b"", b"", b""), wrong], *after)


tokens = st.sampled_from([b"a", b"_INBOX", b"", b"S", b"1"])
dotted = st.lists(tokens, min_size=1, max_size=5).map(b".".join)


@settings(max_examples=2000)
@given(st.lists(dotted, min_size=1, max_size=6), st.integers(1, 5))
def test_run_length(names: list[bytes], count: int) -> None:
    assert native.run_length is not None
    parts = names[0].rsplit(b".", count)
    expected = 1
    for name in names[1:]:
        others = name.rsplit(b".", count)
        if len(others) <= count or others[0] != parts[0] or b"" in others[1:]:
            break
        expected += 1
    run = [(b"before", b"")] + [(name, b"", b"") for name in names]
    assert native.run_length(run, 1, len(parts[0]), count) == expected


@pytest.mark.parametrize("wrong", [(), None, ("a",), [b"a"]])
def test_run_length_of_what_is_no_message_is_an_error(wrong: object) -> None:
    assert native.run_length is not None
    with pytest.raises(TypeError):
        native.run_length([(b"a.b",), wrong], 0, 1, 1)
    with pytest.raises(ValueError):
        native.run_length([(b"a.b",)], 0, 9, 1)


@given(messages)
def test_payload_bytes(some: list[Outgoing]) -> None:
    assert size_of(some) == by_python(size_of, some)


def elsewhere(answers: list[tuple[bytes, bytes]]) -> object:
    """The answers that another node and a client here get, of some to the other node's clients and to this one's."""
    rig = ServerRig()
    here, node, third = rig.client(b"SUB plain.> 1", b"SUB _INBOX.b.* 2"), FakePeer("n"), FakePeer("t")
    for peer, subject in ((node, b"_INBOX.a.*"), (node, b"_INBOX.c.>"), (third, b"_INBOX.c.>")):
        rig.router.peers.set_interest(peer, subject, None, 1)
    rig.router.publish(b"_INBOX.a.0", b"first")  # caches the routes
    rig.router.publish_many(answers)
    return node.sent, third.sent, here.read()


inboxes = st.one_of(subjects, subjects, st.sampled_from([b"_INBOX.c.1", b"_INBOX.c.x.y", b"_INBOX.a.7"]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(inboxes, payloads), max_size=30))
def test_answers_to_clients_of_other_nodes(answers: list[tuple[bytes, bytes]]) -> None:
    assert elsewhere(answers) == by_python(elsewhere, answers)


def came(some: list[Outgoing]) -> object:
    """The calls, failures and output that messages from another node cause."""
    rig, calls = ServerRig(), []
    clients = rig.client(b"SUB _INBOX.a.* 1", b"SUB plain.> 2"), rig.client(b"SUB plain.a 3", b"SUB _INBOX.b.* 4")

    def take(name: str, *message: object) -> None:
        calls.append((name, *message[:4]))

    def many(name: str, messages: list[Outgoing], most: int = 2) -> int:
        for message in messages[:most]:
            take(name, *message)
        return len(messages[:most])

    subscribe = rig.router.subscribe
    subscribe(b"$JS.ACK.S.C.*.*.*.*.*", partial(take, "acks"), bulk=lambda messages, _: many("acks", messages))
    subscribe(b"orders.*", partial(take, "orders"), bulk=lambda messages, _: many("orders", messages, 100))
    subscribe(b"mine.*", partial(take, "mine"), local_only=True, bulk=lambda messages, _: many("mine", messages))
    subscribe(b"gets.*", partial(take, "gets"), b"_sys_", bulk=lambda messages, _: many("gets", messages))
    failures: list[str] = []
    rig.server.accounts.deliver_each_from_peer(FakePeer("n"), "$G", some, lambda: failures.append(""))
    return calls, failures, [client.read() for client in clients]


places = st.sampled_from([b"orders.1", b"orders.2", b"mine.1", b"mine.2", b"gets.1", b"gets.2", b"plain.a", b"plain.b"])
acks = st.integers(1, 9).map(lambda number: b"$JS.ACK.S.C.1.%d.3.4.5" % number)
anywhere = st.one_of(places, places, acks, acks, subjects)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(anywhere, replies, blocks, payloads), min_size=1, max_size=20))
def test_messages_of_another_node(some: list[Outgoing]) -> None:
    assert came(some) == by_python(came, some)
    named = {call[0] for call in came(some)[0]}  # type: ignore[index]
    assert not named & {"mine", "gets"}, "those take no message of another node without being named"
