"""INFO, as far as all clients are told the same, and the addresses in it."""

from __future__ import annotations

from jetcluster.server.info import client_url, connect_urls, server_info
from testkit.server_rig import Bench


def test_a_server_on_its_own_says_little() -> None:
    info = server_info(Bench(server_name="n1", port=4222).server.state)
    assert list(info) == [
        "server_id", "server_name", "version", "proto", "go", "host", "port", "headers", "max_payload", "api_lvl",
    ]  # fmt: skip
    assert (info["server_name"], info["port"], info["headers"]) == ("n1", 4222, True)


def test_of_a_cluster_it_tells_the_addresses_this_server_s_first() -> None:
    state = Bench(cluster_name="C", host="10.0.0.1", port=4222).server.state
    state.peer_urls = ["10.0.0.2:4222", "10.0.0.1:4222"]
    assert client_url(state) == "10.0.0.1:4222"
    assert server_info(state)["connect_urls"] == ["10.0.0.1:4222", "10.0.0.2:4222"]
    state.lame_duck = True
    assert connect_urls(state) == state.peer_urls and server_info(state)["ldm"] is True, "clients are to go elsewhere"


def test_no_advertise() -> None:
    state = Bench(cluster_name="C", host="10.0.0.1", port=4222).server.state
    state.options.cluster.no_advertise = True
    assert client_url(state) == "" and "connect_urls" not in server_info(state)
