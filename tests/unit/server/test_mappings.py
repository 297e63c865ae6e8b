"""Subject mappings: where clients' messages go, and what is not mapped."""

from __future__ import annotations

from collections import Counter

from jetcluster.config.account_options import AccountOptions, MappingDestination, MappingOptions
from tests.unit.server.sharing import Nodes, account


def weighted(*destinations: MappingDestination, source: str = "a") -> AccountOptions:
    found = AccountOptions("A")
    found.mappings = [MappingOptions(source, list(destinations))]
    return found


def shares(nodes: Nodes, times: int = 1000) -> Counter[str]:
    reader, writer = nodes.client("A", b"SUB > 1"), nodes.client("A")
    for _ in range(times):
        writer.send(b"PUB a 0", b"")
    return Counter(line.split()[1].decode() for line in reader.read().split(b"\r\n") if line)


def test_weights() -> None:
    nodes = Nodes(1, weighted(MappingDestination("b", 20), MappingDestination("c", 30)))
    found = shares(nodes)
    assert sum(found.values()) == 1000
    assert abs(found["b"] - 200) < 50 and abs(found["c"] - 300) < 60 and abs(found["a"] - 500) < 70


def test_loss() -> None:
    found = shares(Nodes(1, weighted(MappingDestination("a", 50))))
    assert set(found) == {"a"} and abs(found["a"] - 500) < 70


def test_clusters_have_their_own_destinations() -> None:
    here = Nodes(1, weighted(MappingDestination("b", 100, "C"), MappingDestination("c", 100)))
    assert shares(here, 20) == {"b": 20}
    elsewhere = Nodes(1, weighted(MappingDestination("b", 100, "D"), MappingDestination("c", 100)))
    assert shares(elsewhere, 20) == {"c": 20}


def test_random_partitions_differ() -> None:
    found = shares(Nodes(1, weighted(MappingDestination("r.{{random(10)}}"))), 200)
    assert len(found) == 10


def test_messages_are_mapped_once_where_they_come_in() -> None:
    """Neither what the server publishes nor what comes from another node is mapped."""
    nodes = Nodes(2, account("A", foo="bar", bar="baz"))
    reader = nodes.client("A", b"SUB > 1", at=1)
    nodes.client("A").send(b"PUB foo 1", b"1")
    assert reader.read() == b"MSG bar 1 1\r\n1\r\n"
    assert nodes.rigs[0].server.account("A").publish(b"foo", b"2") == 1
    assert reader.read() == b"MSG foo 1 1\r\n2\r\n"


def test_a_subject_that_becomes_too_long_is_lost() -> None:
    """Cached or not."""
    for weight in (100, 99):
        many = MappingDestination(".".join(["$1"] * 60), weight)
        nodes = Nodes(1, weighted(many, MappingDestination("b", 100 - weight), source="a.*"))
        reader, writer = nodes.client("A", b"SUB *.*.> 1"), nodes.client("A")
        for _ in range(3):
            writer.send(b"PUB a.%b 0" % (b"x" * 3000), b"")
            assert reader.read() == b""
    writer.send(b"PUB a.x 0", b"")
    assert reader.read() == b"MSG %b 1 0\r\n\r\n" % b".".join([b"x"] * 60)


def test_a_reload_changes_what_is_cached() -> None:
    nodes = Nodes(1, account("A"))
    reader, writer = nodes.client("A", b"SUB > 1"), nodes.client("A")
    writer.send(b"PUB foo 0", b"", b"PUB foo 0", b"")
    assert reader.read().count(b"MSG foo") == 2
    nodes.share(account("A", foo="bar"))
    writer.send(b"PUB foo 0", b"")
    assert reader.read() == b"MSG bar 1 0\r\n\r\n"
    nodes.share(account("A"))
    writer.send(b"PUB foo 0", b"")
    assert reader.read() == b"MSG foo 1 0\r\n\r\n"


def test_mapped_to_what_a_callback_takes() -> None:
    nodes = Nodes(1, account("A", foo="js.x"))
    got: list[bytes] = []
    nodes.rigs[0].server.account("A").subscribe(b"js.>", lambda s, r, h, p, o: got.append(s + b" " + r))
    writer = nodes.client("A", b"SUB in 1")
    assert writer.ask(b"PUB foo in 0", b"") == b""
    assert got == [b"js.x in"]


def test_other_accounts_are_not_mapped() -> None:
    nodes = Nodes(1, account("A", foo="bar"), of_global=[MappingOptions("g", [MappingDestination("h")])])
    other, reader = nodes.client("D", b"SUB > 1"), nodes.client("$G", b"SUB > 1")
    other.send(b"PUB foo 0", b"")
    assert other.read() == b"MSG foo 1 0\r\n\r\n"
    reader.send(b"PUB g 0", b"", b"PUB foo 0", b"")
    assert reader.read() == b"MSG h 1 0\r\n\r\nMSG foo 1 0\r\n\r\n"
