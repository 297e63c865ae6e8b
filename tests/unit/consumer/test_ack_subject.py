from __future__ import annotations

from jetcluster.consumer.owner.ack_subject import Renderer, of_flow_control, prefix, prefix_v2, sized
from jetcluster.model.account_hash import account_hash
from jetcluster.store.api import Columns

COLUMNS = Columns([7, 9], [100, 200], [b"a", b"b"], [b"", b"NATS/1.0\r\nX: 1\r\n\r\n"], [b"one", b"four"])


def test_first_deliveries() -> None:
    assert Renderer(prefix(b"S", b"C")).first(COLUMNS, range(3, 5), range(6, 4, -1)) == [
        (b"a", b"$JS.ACK.S.C.1.7.3.100.6", b"", b"one"),
        (b"b", b"$JS.ACK.S.C.1.9.4.200.5", b"NATS/1.0\r\nX: 1\r\n\r\n", b"four"),
    ]


def test_deliveries_again() -> None:
    assert [message[1] for message in Renderer(prefix(b"S", b"C")).again(COLUMNS, range(8, 10), [2, 5], 3)] == [
        b"$JS.ACK.S.C.2.7.8.100.3",
        b"$JS.ACK.S.C.5.9.9.200.3",
    ]


def test_names_with_percent_signs() -> None:
    (message, _) = Renderer(prefix(b"S%d", b"C%%")).first(COLUMNS, range(1, 3), range(2))
    assert message[1] == b"$JS.ACK.S%d.C%%.1.7.1.100.0"


def test_headers_only() -> None:
    first, second = Renderer(prefix(b"S", b"C"), headers_only=True).first(COLUMNS, range(1, 3), range(2))
    assert first[2:] == (b"NATS/1.0\r\nNats-Msg-Size: 3\r\n\r\n", b"")
    assert second[2:] == (b"NATS/1.0\r\nX: 1\r\nNats-Msg-Size: 4\r\n\r\n", b"")
    assert sized(b"", b"") == b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n"


def test_the_second_form() -> None:
    hashed = account_hash("A")
    assert len(hashed) == 8 and hashed.isalnum() and hashed != account_hash("B")
    assert prefix_v2(b"", "A", b"S", b"C") == b"$JS.ACK._.%b.S.C." % hashed.encode()
    assert prefix_v2(b"hub", "A", b"S", b"C") == b"$JS.ACK.hub.%b.S.C." % hashed.encode()


def test_deliveries_and_flow_control_in_the_second_form() -> None:
    v2 = prefix_v2(b"hub", "A", b"S", b"C")
    first, _ = Renderer(v2).first(COLUMNS, range(3, 5), range(6, 4, -1))
    assert first[1] == v2 + b"1.7.3.100.6"
    assert of_flow_control(v2) == b"$JS.FC.hub.%b.S.C." % account_hash("A").encode()
    assert of_flow_control(prefix(b"S", b"C")) == b"$JS.FC.S.C."
