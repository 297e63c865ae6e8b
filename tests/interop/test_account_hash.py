"""`{{account-hash()}}` in exports, imports, mappings and deny lists of leaf links, at nats-server and here."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from jetcluster.model.account_hash import account_hash
from testkit.harness import find_server

from .leaf_pair import OURS, THEIRS, LeafPair, server

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.usefixtures("newest_peer")]

CONFIG = """
accounts {
  EXP {
    users: [ {user: exp, password: p} ]
    exports: [ {stream: "events.{{account-hash()}}.>"}, {service: "req.{{account-hash()}}.*"} ]
    mappings: { "in.{{account-hash()}}.*": "{{account-hash()}}.out.{{wildcard(1)}}" }
  }
  IMP {
    users: [ {user: imp, password: p} ]
    imports: [
      {stream: {subject: "events.{{account-hash-import()}}.>", account: EXP}, prefix: "from.{{account-hash()}}"}
      {service: {subject: "req.{{account-hash-import()}}.*", account: EXP}, to: "svc.{{account-hash()}}.*"}
    ]
  }
}
"""
NOT_HERE = "invalid mapping destination: function is not available in this context in"
REFUSED = {  # with the texts of nats-server 2.15.3
    'accounts: { A: { exports [ { stream: "x.{{account-hash-import()}}" } ] } }': (
        f'1:0: Error adding stream export "x.{{{{account-hash-import()}}}}": {NOT_HERE} {{{{account-hash-import()}}}}'
    ),
    'accounts: { A: { exports [ { service: "x.{{account-hash(a,b)}}" } ] } }': (
        '1:0: Error adding service export "x.{{account-hash(a,b)}}": '
        "invalid mapping destination: too many arguments passed to the function in {{account-hash(a,b)}}"
    ),
    'accounts: { A: { exports [ { service: "x.{{account-hash()}}.*", account_token_position: 2 } ] } }': (
        '1:0: Error adding service export "x.{{account-hash()}}.*": sublist: invalid subject'
    ),
    'accounts: { A: { exports [ { stream: "x.>" } ] }, B: { imports [ { stream: { subject: '
    '"x.{{account-hash-leaf-remote()}}", account: A } } ] } }': (
        '1:0: Error adding stream import "x.{{account-hash-leaf-remote()}}": '
        f"{NOT_HERE} {{{{account-hash-leaf-remote()}}}}"
    ),
    'accounts: { A: { mappings: { "foo": "{{account-hash-import()}}" } } }': (
        '1:30: Error adding mapping for "foo" to "{{account-hash-import()}}" : '
        f"{NOT_HERE} {{{{account-hash-import()}}}}"
    ),
    'accounts: { A: { mappings: { "foo.{{ account-hash() }}": "b" } } }': (
        '1:17: Subject "foo.{{ account-hash() }}" is not a valid subject'
    ),
}


def theirs() -> list[str]:
    command = find_server(THEIRS)
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", told)[:3])) < (2, 15, 3):
        pytest.skip(f"{told.strip()} does not know the functions: run `scripts/tools.sh peer`")
    return command


async def story(kind: str, folder: Path) -> list[Any]:
    folder.mkdir()
    node = server(kind, folder, "one", CONFIG)
    await node.start()
    seen: list[Any] = []
    clients = [await nats.connect(node.url.replace("://", f"://{user}:p@")) for user in ("exp", "imp")]
    exporter, importer = clients
    e, i = account_hash("EXP"), account_hash("IMP")
    try:
        events = await importer.subscribe(f"from.{i}.events.{e}.>")
        mapped = await exporter.subscribe(f"{e}.out.*")

        async def answer(message: Any) -> None:
            await message.respond(message.subject.encode())

        await exporter.subscribe(f"req.{e}.*", cb=answer)
        for client in clients:
            await client.flush()
        await exporter.publish(f"events.{e}.a.b", b"1")
        await exporter.publish(f"in.{e}.x", b"2")
        for subscription in (events, mapped):
            message = await subscription.next_msg(timeout=5)
            seen.append((message.subject, message.data))
        seen.append((await importer.request(f"svc.{i}.hello", b"", timeout=5)).data)
    finally:
        for client in clients:
            await client.close()
        node.kill9()
    return seen


async def test_exports_imports_and_mappings_mean_the_same(tmp_path: Path) -> None:
    theirs()
    expected = await story(THEIRS, tmp_path / "theirs")
    assert len(expected) == 3 and await story(OURS, tmp_path / "ours") == expected


def verdict(command: list[str], text: str, folder: Path) -> str:
    path = folder / "c.conf"
    path.write_text(text)
    done = subprocess.run([*command, "-t", "-c", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().removeprefix(f"nats-server: {path}:")


@pytest.mark.parametrize("text", REFUSED)
def test_what_means_nothing_is_refused(text: str, tmp_path: Path) -> None:
    command = find_server(OURS)
    assert command is not None and verdict(command, text, tmp_path) == REFUSED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_nats_server_refuses_it_with_the_same_words(text: str, tmp_path: Path) -> None:
    assert verdict(theirs(), text, tmp_path) == REFUSED[text]


@pytest.mark.parametrize("kinds", [(OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)], ids=lambda pair: "-".join(pair))
async def test_deny_lists_of_a_link(kinds: tuple[str, str], tmp_path: Path) -> None:
    if THEIRS in kinds:
        theirs()
    own, far = account_hash("EDGE"), account_hash("$G")
    (tmp_path / "x").mkdir()
    config = "accounts: { EDGE: { users: [ {user: e, password: p} ] } }\nno_auth_user: e\n"
    remote = (
        'account: EDGE, deny_exports: ["out.{{account-hash()}}.>", "far.{{account-hash-leaf-remote()}}.>"], '
        'deny_imports: "in.{{account-hash()}}.>"'
    )
    pair = LeafPair(*kinds, tmp_path / "x", leaf_config=config, remote=remote)
    async with pair:
        edge = pair.at_leaf
        got: list[str] = []

        async def take(message: Any) -> None:
            got.append(message.subject)

        for client in (pair.at_hub, edge):
            await client.subscribe("*.*.x", cb=take)
            await client.flush()
        await asyncio.sleep(0.5)
        for subject in (f"out.{own}.x", f"far.{far}.x", "out.other.x", "far.other.x"):
            await edge.publish(subject)
        for subject in (f"in.{own}.x", f"out.{own}.x", "in.other.x"):
            await pair.at_hub.publish(subject)
        for client in (pair.at_hub, edge):
            await client.flush()
        await asyncio.sleep(1)
        crossed = sorted(subject for subject in set(got) if got.count(subject) == 2 or subject == f"out.{own}.x")
        assert crossed == sorted(["out.other.x", "far.other.x", "in.other.x", f"out.{own}.x"])
        assert (got.count(f"far.{far}.x"), got.count(f"in.{own}.x")) == (1, 1)
        assert got.count(f"out.{own}.x") == 3, "its own at each end, and from the hub to the leaf"
