"""Leaf links with TLS, nkeys and credentials, between our servers and with nats-server at either end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest

from testkit.certificates import Authority
from testkit.harness import Node, eventually, find_server, free_ports
from tests.signer import USER, Key, Operator, preload

from .leaf_pair import OURS, THEIRS, linked, server

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

PAIRS = [(OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)]
WITH_THEIRS = PAIRS[:2]


def need(kinds: tuple[str, ...]) -> None:
    if THEIRS in kinds and find_server(THEIRS) is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")


async def talk(above: Node, below: Node, **login: Any) -> None:
    """A message crosses the link each way."""
    clients = [await nats.connect(above.url, **login), await nats.connect(below.url)]
    try:
        for one, other in (clients, clients[::-1]):
            waiting = await one.subscribe("hello")
            await one.flush()

            async def heard(waiting: Any = waiting, other: Any = other) -> bool:
                await other.publish("hello", b"x")
                try:
                    await waiting.next_msg(timeout=0.2)
                except nats.errors.TimeoutError:
                    return False
                return True

            await eventually(heard, 10, "nothing crosses the link")
            await waiting.unsubscribe()
    finally:
        for client in clients:
            await client.close()


async def says(node: Node, text: str) -> None:
    await eventually(lambda: text in node.log(), 10, f"{node.name} does not say {text!r}", node)


async def started(stack: AsyncExitStack, *nodes: Node) -> None:
    for node in nodes:
        stack.callback(node.kill9)
        await node.start()


@pytest.mark.parametrize("kinds", PAIRS, ids=lambda pair: f"{pair[0]}-hub-{pair[1]}-leaf")
async def test_both_ends_show_certificates(kinds: tuple[str, str], tmp_path: Path) -> None:
    need(kinds)
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    (port,) = free_ports(1)
    key = Key(USER)
    seed, wrong = key.seed, Key(USER).seed
    hub = server(
        kinds[0], tmp_path, "hub",
        f'leafnodes {{ listen: "127.0.0.1:{port}", {authority.tls("hub", ", verify: true")}, '
        f"authorization {{ nkey: {key.public} }} }}",
    )  # fmt: skip

    def leaf(name: str, tls: str, seed: str) -> Node:
        remote = f'{{ url: "tls://localhost:{port}", nkey: {seed}, {tls} }}'
        return server(kinds[1], tmp_path, name, f"leafnodes {{ remotes [ {remote} ] }}")

    good = leaf("good", authority.tls("leaf"), seed)
    bare = leaf("bare", f'tls {{ ca_file: "{authority.file}" }}', seed)
    stranger = leaf("stranger", other.tls("stranger"), seed)
    forger = leaf("forger", authority.tls("forger"), wrong)
    async with AsyncExitStack() as stack:
        await started(stack, hub, good, bare, stranger, forger)
        await linked(good)
        await talk(hub, good)
        await asyncio.sleep(1)
        links = (await hub.monitor("leafz"))["leafs"]
        assert [link["name"] for link in links] == ["good"]
        if kinds[0] == OURS:
            await says(hub, "Authorization Violation")
        if kinds == (OURS, THEIRS):
            await says(hub, "TLS handshake error: the other end shows no certificate")
        if kinds[1] == OURS:
            await says(bare, "TLS handshake error: the other end wants a certificate of this one")
            await says(stranger, "TLS handshake error: the other end's certificate is refused")
        for node in (hub, good, bare, stranger, forger):
            assert seed not in node.log()
            assert wrong not in node.log()


@pytest.mark.parametrize("kinds", WITH_THEIRS, ids=lambda pair: f"{pair[0]}-hub-{pair[1]}-leaf")
async def test_handshake_first(kinds: tuple[str, str], tmp_path: Path) -> None:
    need(kinds)
    authority = Authority(tmp_path)
    (port,) = free_ports(1)
    first = ", handshake_first: true"
    hub = server(
        kinds[0], tmp_path, "hub",
        f'leafnodes {{ listen: "127.0.0.1:{port}", {authority.tls("hub", first)}, '
        "authorization { user: u, password: not-told } }",
    )  # fmt: skip
    url = f"nats-leaf://u:not-told@127.0.0.1:{port}"
    leaf = server(
        kinds[1], tmp_path, "leaf",
        f'leafnodes {{ remotes [ {{ url: "{url}", tls {{ ca_file: "{authority.file}"{first} }} }} ] }}',
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        await started(stack, hub, leaf)
        await linked(leaf)
        await talk(hub, leaf)
        assert "not-told" not in hub.log() + leaf.log()


@pytest.mark.parametrize("kinds", PAIRS)
async def test_credentials_of_an_operators_user(tmp_path: Path, kinds: tuple[str, str]) -> None:
    """The hub is in operator mode. A leaf without its file of credentials is refused, and so are users who may not come
    as leaves, from here, or any more."""
    need(kinds)
    operator = Operator()
    system, account = operator.account("SYS"), operator.account("A")
    user, here = account.user(allowed_connection_types=["LEAFNODE"], src=["127.0.0.0/8"]), account.user()
    others = {
        "client": account.user(allowed_connection_types=["STANDARD"]),
        "elsewhere": account.user(src=["10.0.0.0/8"]),
        "late": account.user(fields={"exp": 5}),
    }
    file = tmp_path / "user.creds"
    file.write_text(user.credentials)
    (port,) = free_ports(1)
    hub = server(
        kinds[0], tmp_path, "hub",
        f'operator: "{operator.jwt}"\nsystem_account: {system.public}\n{preload(system, account)}'
        f'leafnodes {{ listen: "127.0.0.1:{port}" }}',
    )  # fmt: skip
    url = f'url: "nats-leaf://127.0.0.1:{port}"'
    remotes = [f'{{ {url}, credentials: "{file}" }}']
    for name, other in others.items():
        (tmp_path / f"{name}.creds").write_text(other.credentials)
        remotes.append(f'{{ {url}, account: {name}, credentials: "{tmp_path}/{name}.creds" }}')
    accounts = f"accounts {{ {', '.join(f'{name} {{}}' for name in others)} }}"
    leaf = server(kinds[1], tmp_path, "leaf", f"{accounts}\nleafnodes {{ remotes [ {', '.join(remotes)} ] }}")
    bare = server(OURS, tmp_path, "bare", f'leafnodes {{ remotes [ {{ {url}, credentials: "{file}.not" }} ] }}')
    async with AsyncExitStack() as stack:
        await started(stack, hub, leaf, bare)
        await linked(leaf)
        await talk(hub, leaf, **here.options)
        await says(bare, "cannot log in: credentials file")
        await linked(bare, 0)
        await linked(leaf)
        logs = hub.log() + leaf.log()
        assert not any(secret in logs for secret in (user.key.seed, user.jwt.rpartition(".")[2]))
