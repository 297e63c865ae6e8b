"""INFO and GOSSIP (mesh/info.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import FrameError
from jetcluster.mesh.info import (
    MAX_GOSSIP_NODES,
    decode_gossip,
    decode_info,
    encode_gossip,
    encode_info,
    join_url,
    reachable_url,
    split_url,
)

NODE = NodeInfo(
    "Abcdefg1",
    "n1",
    "Bootboo1",
    "10.0.0.1:6222",
    "10.0.0.1:4222",
    ("ssd", "eu"),
    jetstream=False,
    leaf_url="10.0.0.1:7422",
)


def test_round_trip() -> None:
    assert decode_info(encode_info(NODE)[5:], "10.9.9.9") == NODE


@pytest.mark.parametrize("url", ["host", 7422])
def test_nodes_need_not_take_leaf_links_but_must_say_it_right(url: Any) -> None:
    data = json.loads(encode_info(NODE)[5:])
    with pytest.raises(FrameError):
        decode_info(json.dumps(data | {"leaf_url": url}).encode(), "")
    del data["leaf_url"]
    assert decode_info(json.dumps(data).encode(), "").leaf_url == ""


def test_nodes_announce_how_long_what_they_acknowledge_may_not_be_on_disk_and_older_ones_do_not() -> None:
    for seconds in (0.0, 10.0):
        assert decode_info(encode_info(replace(NODE, sync_interval=seconds))[5:], "").sync_interval == seconds
    data = json.loads(encode_info(NODE)[5:])
    assert "sync_interval" not in data and decode_info(json.dumps(data).encode(), "").sync_interval is None
    for wrong in (-1, 1e12, True, "10"):
        with pytest.raises(FrameError):
            decode_info(json.dumps(data | {"sync_interval": wrong}).encode(), "")


def test_a_wildcard_host_becomes_the_address_the_peer_was_seen_from() -> None:
    node = NodeInfo("Abcdefg1", "n1", "Bootboo1", "0.0.0.0:6222", "[::]:4222")
    seen = decode_info(encode_info(node)[5:], "192.168.1.7")
    assert (seen.cluster_url, seen.client_url) == ("192.168.1.7:6222", "192.168.1.7:4222")
    assert reachable_url("0.0.0.0:1", "fe80::1") == "[fe80::1]:1"
    assert reachable_url("", "1.2.3.4") == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peer_id", "short"),
        ("peer_id", None),
        ("boot_id", 12345678),
        ("name", "evil\r\nname"),
        ("name", "x" * 600),
        ("cluster_url", "no port"),
        ("cluster_url", "host:0"),
        ("client_url", "host:70000"),
        ("client_url", 'ho"st:1'),
        ("client_url", "host:²"),
        ("tags", "ssd"),
        ("tags", [1]),
        ("tags", ["t"] * 65),
        ("jetstream", 1),
    ],
)
def test_bad_fields(key: str, value: Any) -> None:
    data = json.loads(encode_info(NODE)[5:])
    data[key] = value
    with pytest.raises(FrameError):
        decode_info(json.dumps(data).encode(), "")
    del data[key]
    with pytest.raises(FrameError):
        decode_info(json.dumps(data).encode(), "")


@given(st.binary(max_size=100) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_garbage(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_info(body, "")
    with pytest.raises(FrameError):
        decode_gossip(body)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(FrameError):
        decode_gossip(b"[" * 100_000)


def test_gossip() -> None:
    nodes = [("Abcdefg1", "10.0.0.1:6222"), ("Abcdefg2", "[::1]:6222")]
    assert decode_gossip(encode_gossip(nodes)[5:]) == nodes
    assert decode_gossip(encode_gossip([])[5:]) == []
    assert len(decode_gossip(encode_gossip(nodes * 1000)[5:])) == MAX_GOSSIP_NODES
    for bad in ([["Abcdefg1"]], [["x", "h:1"]], [["Abcdefg1", "h"]], {}, [["Abcdefg1", "h:1"]] * 300):
        with pytest.raises(FrameError):
            decode_gossip(json.dumps({"nodes": bad}).encode())


def test_urls() -> None:
    assert split_url("host:1") == ("host", 1)
    assert split_url("[::1]:2") == ("::1", 2)
    assert join_url("::1", 2) == "[::1]:2"
    for bad in ("host", "host:", ":x", "[::1:2", "a b:1", "u@h:1", "::1"):
        with pytest.raises(ValueError):
            split_url(bad)


def test_info_that_no_peer_would_accept_is_refused_at_home() -> None:
    with pytest.raises(ValueError):
        encode_info(NodeInfo("Abcdefg1", "n" * 9000, "Bootboo1", "", ""))
    with pytest.raises(ValueError):
        encode_info(NodeInfo("Abcdefg1", "n", "Bootboo1", "", "host-without-port"))
