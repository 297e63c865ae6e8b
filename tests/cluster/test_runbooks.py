"""The runbooks (docs/runbooks.md), followed command by command on real servers; afterwards every acknowledged message
is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from testkit.certificates import Authority
from testkit.client import create_stream
from testkit.harness import Node, ProcessCluster, eventually, find_nats_cli, free_port
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all, wait_newest
from tests.runbook_page import Shell, Step, sections, steps

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.ours("the page is about this server"),
]

MESSAGES = 200
CONFIG = """
server_tags: [ "TAG" ]
jetstream { max_file_store: 1GB }
accounts {
  SYS { users: [ { user: sys, password: pw } ] }
  APP { jetstream: enabled, users: [ { user: app, password: one }, { user: test, password: pw } ] }
}
no_auth_user: test
system_account: SYS
"""


@dataclass
class Site:
    """A cluster whose operator follows a runbook."""

    cluster: ProcessCluster
    folder: Path
    ledger: Ledger
    scheme: str = "nats"
    extra: dict[str, str] = field(default_factory=dict)
    """Fields of the contexts."""

    def __post_init__(self) -> None:
        contexts = self.folder / "config" / "nats" / "context"
        contexts.mkdir(parents=True)
        (self.folder / "backups").mkdir(exist_ok=True)
        urls = ",".join(f"{self.scheme}://127.0.0.1:{node.port}" for node in self.cluster.nodes)
        for name, user, password in (("ops", "sys", "pw"), ("app", "app", "one")):
            fields = {"url": urls, "user": user, "password": password, **self.extra}
            (contexts / f"{name}.json").write_text(json.dumps(fields))
        tool = find_nats_cli()
        env = {"XDG_CONFIG_HOME": str(self.folder / "config"), "PATH": str(Path(tool).parent) if tool else ""}
        verbs = {"start": self.start, "stop": self.stop, "reload": self.reload}
        self.shell = Shell(verbs, self.names, env, self.folder)

    def names(self, command: str) -> str:
        """The command with the addresses and folders of this cluster."""
        for node in self.cluster.nodes:
            command = command.replace(f"{node.name}:4222", f"127.0.0.1:{node.port}")
            command = command.replace(f"{node.name}:8222", f"127.0.0.1:{node.http_port}")
            command = re.sub(rf"/data/{node.name}\b", str(node.store), command)
            command = command.replace(f"/etc/jetcluster/{node.name}.conf", str(node.root / "server.conf"))
        command = command.replace("/etc/jetcluster/n*.conf", f"{self.cluster.root}/n*/server.conf")
        return command.replace("/etc/jetcluster", str(self.folder)).replace("/backups", str(self.folder / "backups"))

    def start(self, name: str) -> None:
        asyncio.run(self.cluster.node(name).start())

    def stop(self, name: str) -> None:
        asyncio.run(self.cluster.node(name).stop())

    def reload(self, name: str) -> None:
        node = self.cluster.node(name)
        done = "Reloaded server configuration"
        before = node.log().count(done)
        node.signal(signal.SIGHUP)
        asyncio.run(eventually(lambda: node.log().count(done) > before, 10.0, "no reload", node))

    def follow(self, title: str) -> None:
        text = sections()[title]
        for step in steps(text):
            self.shell.run(step)


def without(node: Node, flag: str) -> None:
    at = node.args.index(flag)
    del node.args[at : at + 2]


@contextlib.contextmanager
def running(folder: Path, count: int, first: int, more: str = "", replicas: int = 3, **options: Any) -> Iterator[Site]:
    """A site with `count` servers of which the first ones run, with a stream ORDERS of so many replicas."""
    cluster = ProcessCluster(count, root=folder / "cluster", config=CONFIG + more, monitor=True)
    known = ",".join(f"nats://127.0.0.1:{node.cluster_port}" for node in cluster.nodes[:first])
    for node in cluster.nodes:
        config = node.root / "server.conf"
        config.write_text(config.read_text().replace("TAG", "old" if node.name in ("n1", "n2", "n3") else "new"))
        if first > 1:
            node.args[node.args.index("--routes") + 1] = known
        if "routes:" in more:
            without(node, "--routes")
            without(node, "--cluster")
            routes = ", ".join(f'"nats://routes:route1@127.0.0.1:{other.cluster_port}"' for other in cluster.nodes)
            text = config.read_text().replace("ROUTES", routes).replace("OWN", f"127.0.0.1:{node.cluster_port}")
            config.write_text(text)

    async def begin() -> Ledger:
        for node in cluster.nodes[:first]:
            node.spawn()
        for node in cluster.nodes[:first]:
            await node.wait_ready()
        await cluster.wait_meta(cluster.nodes[:first])
        async with await cluster[0].connect() as client:
            await create_stream(client, "ORDERS", ["orders.>"], replicas)
            return await publish_all(client, "orders.1", [b"%d" % number for number in range(MESSAGES)])

    try:
        yield Site(cluster, folder, asyncio.run(begin()), **options)
    finally:
        cluster.stop_all()


def all_there(site: Site, node: Node) -> None:
    """Every acked message is in the stream, once."""

    async def look() -> None:
        async with await node.connect() as client:
            await wait_newest(client, "ORDERS")
            check_exactly_once(site.ledger, await read_all(client, "ORDERS"))

    asyncio.run(look())


def until(check: Callable[[], bool], what: str) -> None:
    """Outside of any loop: the checks run loops of their own."""
    deadline = time.monotonic() + 30.0
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_each_runbook_has_a_test() -> None:
    followed = set(re.findall(r'follow\("([^"]+)"\)', Path(__file__).read_text()))
    assert followed == set(sections())


def test_replace_a_server(tmp_path: Path) -> None:
    with running(tmp_path, 4, 3) as site:
        site.follow("Replace a server")
        all_there(site, site.cluster[3])


def test_replace_a_dead_server(tmp_path: Path) -> None:
    with running(tmp_path, 4, 3) as site:
        site.cluster[2].kill9()
        site.follow("Replace a server")
        all_there(site, site.cluster[3])


def test_lose_a_disk(tmp_path: Path) -> None:
    with running(tmp_path, 3, 3) as site:
        site.follow("Lose a disk")
        for node in site.cluster.nodes[:2]:
            node.kill9()
        asyncio.run(site.cluster[0].start())
        all_there(site, site.cluster[2])


def test_a_majority_is_lost(tmp_path: Path, tool: str) -> None:
    with running(tmp_path, 3, 3) as site:
        asyncio.run(site.cluster.wait_current("ORDERS"))
        for node in site.cluster.nodes[1:]:
            node.kill9()
            shutil.rmtree(node.store)
        site.follow("A majority is lost")
        all_there(site, site.cluster[1])


def test_restore_from_a_backup(tmp_path: Path, tool: str) -> None:
    with running(tmp_path, 3, 3) as site:
        site.shell.run(Step("jetcluster backup /backups --context app", ()))
        site.shell.run(Step("nats --context app stream rm ORDERS -f", ()))
        site.follow("Restore from a backup")
        all_there(site, site.cluster[1])


def test_upgrade_and_go_back(tmp_path: Path) -> None:
    """With the same version: tests/cluster/test_upgrade.py has two."""
    with running(tmp_path, 3, 3) as site:
        site.follow("Upgrade and go back")
        all_there(site, site.cluster[0])


def test_grow_volumes(tmp_path: Path) -> None:
    with running(tmp_path, 3, 3) as site:
        site.follow("Grow volumes")


def test_scale_down(tmp_path: Path) -> None:
    with running(tmp_path, 4, 4) as site:
        site.follow("Scale down")
        all_there(site, site.cluster[0])


def test_rotate_certificates_and_passwords(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.file, ca)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    (tmp_path / "new").mkdir()
    for folder, days in ((tmp_path / "new", 90.0), (tmp_path, 1.0)):
        for file, new in zip(("cert", "key"), authority.issue_to("one", name, names, days=days), strict=True):
            shutil.move(new, folder / f"{file}.pem")
    more = f'''
tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}
allow_non_tls: true
cluster {{ name: C, listen: "OWN", authorization {{ user: routes, password: route1 }}, routes: [ ROUTES ] }}
'''
    with running(tmp_path, 3, 3, more, scheme="tls", extra={"ca": str(ca)}) as site:
        site.follow("Rotate certificates and passwords")
        all_there(site, site.cluster[0])


def test_move_a_stream(tmp_path: Path, tool: str) -> None:
    with running(tmp_path, 4, 4, replicas=1) as site:
        site.follow("Move a stream")
        until(lambda: home(site.cluster[0]) == "n4", "it has not moved")
        all_there(site, site.cluster[0])


def home(node: Node) -> str:
    async def look() -> str:
        async with await node.connect() as client:
            return str((await client.api("STREAM.INFO.ORDERS"))["cluster"].get("leader"))

    return asyncio.run(look())


def test_recover_a_damaged_replica(tmp_path: Path, tool: str) -> None:
    with running(tmp_path, 3, 3) as site:
        site.follow("Recover a damaged replica")
        all_there(site, site.cluster[2])


def test_a_datacenter_is_lost(tmp_path: Path, tool: str) -> None:
    port = free_port()
    user = "authorization { user: edge, password: pw, account: APP }"
    hub = f'leafnodes {{ listen: "127.0.0.1:{port}", {user} }}\njetstream {{ domain: hub }}\n'
    remote = f'{{ url: "nats-leaf://edge:pw@127.0.0.1:{port}", account: APP }}'
    edge = f"leafnodes {{ remotes: [ {remote} ] }}\njetstream {{ domain: edge }}\n"
    far = ProcessCluster(1, root=tmp_path / "edge", config=CONFIG + edge, monitor=True)
    with running(tmp_path, 1, 1, hub, replicas=1) as site:
        try:
            asyncio.run(far[0].start())
            here = Site(far, tmp_path / "there", site.ledger)
            here.shell.run(Step("jetcluster mirror ORDERS --domain hub --context app", ()))
            until(lambda: messages(far[0]) == MESSAGES, "the mirror is not filled")
            site.cluster[0].kill9()
            here.follow("A datacenter is lost")
            assert messages(far[0]) == MESSAGES + 1
        finally:
            far.stop_all()


def messages(node: Node) -> int:
    async def look() -> int:
        async with await node.connect() as client:
            return int((await client.api("STREAM.INFO.ORDERS"))["state"]["messages"])

    return asyncio.run(look())
