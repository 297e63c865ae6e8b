"""Greetings of leaf links, the state that a server keeps for all of them, and the URLs of hubs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.server.leaf.handshake import is_at_least
from jetcluster.server.leaf.state import MAX_DISCOVERED, LeafState, host_of, place, wants_tls
from jetcluster.server.leaf.tls import LeafTls
from testkit.certificates import Authority
from testkit.server_rig import ServerRig
from tests.unit.server.leaf_rig import LeafRig


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("nats-leaf://u:p@hub:7000", ("u", "p", "hub", 7000)),
        ("tls://hub", ("", "", "hub", 7422)),
        ("hub", ("", "", "hub", 7422)),
        ("nats://t0ken@hub/", ("t0ken", "", "hub", 7422)),
    ],
)
def test_parts(url: str, parts: tuple[str, str, str, int]) -> None:
    assert place(url) == parts
    assert host_of(url) == "hub"
    assert wants_tls(url) == url.startswith("tls")


def state(leafnodes: LeafOptions | None = None, **options: object) -> LeafState:
    return LeafState(ServerRig(leafnodes=leafnodes or LeafOptions(), server_name="n1", **options).server.state)


def test_the_mark_of_an_account_is_always_the_same_and_no_other_s() -> None:
    leaf = state()
    mark = leaf.loop_mark("A")
    assert mark.startswith(b"$LDS.") and len(mark) == 27
    assert leaf.loop_mark("A") == mark != leaf.loop_mark("B")


def test_the_first_info_has_a_nonce_and_the_next_one_the_account() -> None:
    leaf = state(cluster_name="C")
    leaf.neighbours = ["10.0.0.2:7422"]
    first, later = leaf.info_for(7, "", b"nonce"), leaf.info_for(7, "A", b"nonce")
    assert (first["nonce"], first["client_id"], "remote_account" in first) == ("nonce", 7, False)
    assert (later["connect_info"], later["remote_account"], "nonce" in later) == (True, "A", False)
    assert first["leafnode_urls"] == ["10.0.0.2:7422"] and first["cluster"] == "C"


def test_a_connecting_end_says_who_it_is() -> None:
    remote = LeafRemoteOptions(urls=["nats-leaf://u:p@h"], account="A", hub=True, deny_imports=["x.>"])
    connect = state().connect_for(remote, remote.urls[0], b"")
    assert (connect["user"], connect["pass"], connect["is_hub"], connect["deny_pub"]) == ("u", "p", True, ["x.>"])
    assert connect["cluster"] == connect["name"] == "n1", "a single server is a cluster of its own name"
    token = state().connect_for(remote, "nats-leaf://t@h", b"")
    assert (token["user"], token["auth_token"], "pass" in token) == ("t", "t", False)


def test_addresses_that_a_hub_tells_take_its_credentials_and_are_bounded() -> None:
    leaf, remote = state(), LeafRemoteOptions(urls=["nats-leaf://u:p@h"])
    leaf.discovered(remote, [f"h{at}:1" for at in range(MAX_DISCOVERED + 10)])
    found = leaf.found[id(remote)]
    assert found[0] == "nats-leaf://u:p@h0:1" and len(found) == MAX_DISCOVERED
    other = LeafRemoteOptions(urls=["tls://h"], ignore_discovered_servers=True)
    leaf.discovered(other, ["h1:1"])
    assert id(other) not in leaf.found


def test_its_own_address_is_sent_once_the_port_is_open() -> None:
    leaf = state(LeafOptions(host="10.0.0.1"))
    assert leaf.own_url == "" and leaf.tls_if_any is None
    leaf.port = 7422
    assert leaf.own_url == "10.0.0.1:7422"
    leaf.options.advertise = "leaf.example"
    assert leaf.own_url == "leaf.example:7422"


# A leaf link until both ends know each other; `test_leaf_link` has the whole of it.


@pytest.mark.parametrize(
    ("given", "least", "enough"),
    [
        ("2.14.5", "2.14.5", True),
        ("v2.14.5", "2.14.4", True),
        ("2.9.9", "2.10.0", False),
        ("2.14.5-beta.1", "2.14.5", True),
        ("", "2.0.0", False),
        ("nonsense", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(given: str, least: str, enough: bool) -> None:
    assert is_at_least(given, least) is enough


async def test_of_two_links_of_one_leaf_the_older_one_goes(leaf_rig: LeafRig) -> None:
    old, new = leaf_rig.leaf(server_id="N"), leaf_rig.leaf(server_id="N")
    assert old.link.close_reason == "Duplicate Remote LeafNode Connection" and not new.link.close_reason
    assert leaf_rig.leafnodes.links == [new.link]
    new.link.close("Client Closed")
    assert leaf_rig.leafnodes.links == []


# Contexts of leaf links.


def test_contexts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("hub")
    plain = LeafRemoteOptions(urls=["tls://h"])
    own = LeafRemoteOptions(urls=["tls://h"], tls=TlsOptions(str(cert), str(key), str(authority.file)))
    tls = LeafTls(LeafOptions(tls=own.tls, remotes=[plain, own]))
    assert tls.accepting is not None
    assert tls.connecting(own) is tls.connecting(own) is not tls.connecting(plain)
    assert tls.connecting(plain).verify_mode == ssl.CERT_REQUIRED
    assert LeafTls(LeafOptions(remotes=[plain])).accepting is None
    before = tls.accepting, tls.connecting(own)
    other = tmp_path / "other"
    other.mkdir()
    authority.file.write_text(Authority(other, "other").file.read_text())
    tls.renew()
    for former, context in zip(before, (tls.accepting, tls.connecting(own)), strict=True):
        assert context.get_ca_certs() != former.get_ca_certs()
    before = tls.accepting, tls.connecting(own)
    cert.write_text("rotten")
    with pytest.raises(ConfigError, match="X509 certificate/key pair"):
        tls.renew()
    assert (tls.accepting, tls.connecting(own)) == before


async def test_an_address_that_is_none_does_not_end_the_attempts_at_a_hub() -> None:
    """A hub tells them in INFO: as an operator there wrote them, or as somebody there likes."""
    came = 0
    often = asyncio.Event()
    open_ones: set[asyncio.StreamWriter] = set()

    async def hub(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        open_ones.add(writer)
        if came == 3:
            often.set()
        told = ["a..b:7422", "h:port", "[::1", f"{'a' * 70}:7422", "h:99999999", "h:-1", ":7422"]
        info = {"server_id": "NHUB", "server_name": "H", "leafnode_urls": told, "info_on_connect": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.readline()
        open_ones.discard(writer)
        writer.close()

    async with await asyncio.start_server(hub, "127.0.0.1", 0) as port:
        where = port.sockets[0].getsockname()[1]
        remote = LeafRemoteOptions(urls=[f"nats-leaf://127.0.0.1:{where}"])
        rig = LeafRig(leafnodes=LeafOptions(remotes=[remote], reconnect=0.01))
        await rig.leafnodes.start()
        flushing = asyncio.ensure_future(_flushing(rig))
        try:
            await asyncio.wait_for(often.wait(), 60)
        finally:
            flushing.cancel()
            await rig.leafnodes.stop()
            for writer in open_ones.copy():
                writer.close()
            await asyncio.sleep(0.05)  # their transports close in the next turns


async def _flushing(rig: LeafRig) -> None:
    while True:
        rig.rig.time.advance(0)
        await asyncio.sleep(0.01)
