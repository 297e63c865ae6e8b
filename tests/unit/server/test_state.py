"""The state that all parts of a server share, and the part of INFO that is the same for all clients."""

from __future__ import annotations

import base64
import binascii
import re

from jetcluster.config.account_options import AccountLimitOptions, AccountOptions
from jetcluster.server.state import client_url, connect_urls, new_nonce, new_server_id, server_info
from testkit.server_rig import ServerRig
from testkit.twins.time import SeededRng


def test_a_server_on_its_own_says_little() -> None:
    info = server_info(ServerRig(server_name="n1", port=4222).server.state)
    assert list(info) == [
        "server_id", "server_name", "version", "proto", "go", "host", "port", "headers", "max_payload", "api_lvl",
    ]  # fmt: skip
    assert (info["server_name"], info["port"], info["headers"]) == ("n1", 4222, True)


def test_of_a_cluster_it_tells_the_addresses_this_server_s_first() -> None:
    state = ServerRig(cluster_name="C", host="10.0.0.1", port=4222).server.state
    state.peer_urls = ["10.0.0.2:4222", "10.0.0.1:4222"]
    assert client_url(state) == "10.0.0.1:4222"
    assert server_info(state)["connect_urls"] == ["10.0.0.1:4222", "10.0.0.2:4222"]
    state.lame_duck = True
    assert connect_urls(state) == state.peer_urls and server_info(state)["ldm"] is True, "clients are to go elsewhere"


def test_no_advertise() -> None:
    state = ServerRig(cluster_name="C", host="10.0.0.1", port=4222).server.state
    state.options.cluster.no_advertise = True
    assert client_url(state) == "" and "connect_urls" not in server_info(state)


def test_server_id_is_a_server_nkey() -> None:
    ids = {new_server_id(SeededRng(seed)) for seed in range(50)}
    assert len(ids) == 50
    for server_id in ids:
        assert re.fullmatch("N[A-Z2-7]{55}", server_id)
        raw = base64.b32decode(server_id)
        assert binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")


def test_nonce() -> None:
    assert re.fullmatch(rb"[A-Za-z0-9_-]{15}", new_nonce(SeededRng(1)))


def test_an_account_that_is_not_configured_has_no_limits() -> None:
    accounts = {"A": AccountOptions("A", limits=AccountLimitOptions(max_connections=3))}
    state = ServerRig(accounts=accounts).server.state
    assert state.limits_of("A").max_connections == 3
    assert state.limits_of("B") == AccountLimitOptions()
    assert ServerRig().server.state.limits_of("A") == AccountLimitOptions()


def test_a_reload_replaces_what_the_parts_go_by() -> None:
    rig, traced = ServerRig(), ServerRig(trace=True).server.options
    assert rig.server.state.tracer is None
    rig.server.reconfigure(traced, rig.server.authenticator)
    assert rig.server.parts.state.options is traced and rig.server.state.tracer is not None
