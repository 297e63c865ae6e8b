"""A configuration such as Argo Events generates for its EventBus: values from the environment, an included file with
the users, TLS for clients and routes with one certificate, an encrypted store. It is taken whole, and the servers work.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NATS
from nats.errors import Error
from nats.js.api import StreamConfig

from testkit.certificates import Authority
from testkit.harness import Node, eventually, find_server, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

SERVER = """
port: %(port)d
pid_file: "%(folder)s/nats.pid"
http: %(http)d
server_name: $POD_NAME
max_payload: 4MB
jetstream {
  key: $JS_KEY
  cipher: "aes"
  store_dir: "%(folder)s/store"
  max_memory_store: -1
  max_file_store: -1
}
cluster {
  port: %(route)d
  name: eventbus
  routes: [%(routes)s]
  cluster_advertise: $CLUSTER_ADVERTISE
  connect_retries: 120
  %(authorization)s
  tls { cert_file: "%(cert)s", key_file: "%(key)s", ca_file: "%(authority)s" }
}
lame_duck_duration: 120s
include ./auth.conf
"""
USERS = """
system_account: sys
accounts: {
  "js": {"jetstream": true, "users": [{"user": "js", "pass": "abc"}]},
  "sys": {"users": [{"user": "sys", "pass": "secret"}]}
}
tls { cert_file: "%(cert)s", key_file: "%(key)s", ca_file: "%(authority)s" }
"""


def servers(kind: str, folder: Path) -> list[Node]:
    command = find_server(kind)
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    authority = Authority(folder)
    cert, key = authority.issue("server")
    ports = free_ports(9)
    routes = [f"nats://r:secret@127.0.0.1:{port}" for port in ports[3:6]]
    made = []
    for at in range(3):
        name = f"eventbus-{at}"
        node = Node(name, command, folder / name, ports[at], [])
        values = {
            "port": ports[at], "http": ports[6 + at], "route": ports[3 + at], "routes": ", ".join(routes),
            "folder": node.root, "cert": cert, "key": key, "authority": authority.file,
            "authorization": "authorization { user: r, password: secret, timeout: 5 }",
        }  # fmt: skip
        (node.root / "nats.conf").write_text(SERVER % values)
        (node.root / "auth.conf").write_text(USERS % values)
        node.env = {"POD_NAME": name, "JS_KEY": "a-key-of-the-bus", "CLUSTER_ADVERTISE": f"127.0.0.1:{ports[3 + at]}"}
        node.http_port = ports[6 + at]
        node.args = ["-c", str(node.root / "nats.conf")]
        made.append(node)
    return made


async def connected(node: Node, authority: Path) -> NATS:
    context = ssl.create_default_context(cafile=authority)
    url = f"tls://127.0.0.1:{node.port}"
    return await nats.connect(url, tls=context, max_reconnect_attempts=2, user="js", password="abc")


async def test_the_configuration_of_an_event_bus_is_taken_whole(server: str, tmp_path: Path) -> None:
    nodes = servers(server, tmp_path)
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            await node.wait_ready()
        client = await connected(nodes[0], tmp_path / "cert.pem")
        js = client.jetstream(timeout=3)

        async def made() -> bool:
            with contextlib.suppress(Error):  # nats-server answers nothing before the meta group has a leader
                await js.add_stream(StreamConfig(name="default", subjects=["default.*.*"], num_replicas=3))
                return True
            return False

        await eventually(made, 30, "the stream cannot be made", every=0.2)
        assert (await js.publish("default.source.event", b"the-payload-of-an-event")).seq == 1
        assert client.max_payload == 4 << 20
        await client.close()
        for node in nodes:
            warned = [line for line in node.log().splitlines() if "[WRN]" in line and "connect_retries" not in line]
            assert not warned or server == "nats-server", warned
            assert (await node.monitor("varz"))["server_name"] == node.name
        await nodes[0].stop()
        files = [path.read_bytes() for path in (nodes[0].root / "store").rglob("*") if path.is_file()]
        assert files and not any(b"the-payload-of-an-event" in data for data in files)
        await nodes[0].start()
        client = await connected(nodes[0], tmp_path / "cert.pem")
        found = await client.jetstream(timeout=20).get_msg("default", seq=1)
        assert found.data == b"the-payload-of-an-event"
        await client.close()
    finally:
        for node in nodes:
            node.kill9()
