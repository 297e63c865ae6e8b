"""The oracle itself: nats-server is started again where it refuses a configuration by chance, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.harness import HarnessError, Node, find_server, free_ports
from tests.interop import oracle
from tests.interop.random_sharing import Sharing

pytestmark = pytest.mark.cluster

BY_CHANCE = 304
"""Seed of a configuration that nats-server 2.15.2 refuses at five starts of eight."""
CIRCLE = """accounts {
  A: {exports: [{stream: "x.>"}], imports: [{stream: {account: B, subject: "x.>"}}]}
  B: {exports: [{stream: "x.>"}], imports: [{stream: {account: A, subject: "x.>"}}]}
}
"""


def node(folder: Path, config: str) -> Node:
    command = find_server("nats-server")
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    (folder / "server.conf").write_text(config)
    (port,) = free_ports(1)
    args = ["-a", "127.0.0.1", "-p", str(port), "-c", str(folder / "server.conf")]
    return Node("oracle", command, folder / "node", port, args)


async def test_a_configuration_that_is_refused_by_chance_starts(tmp_path: Path) -> None:
    one = node(tmp_path, Sharing(BY_CHANCE).config)
    starts = rounds = 0
    while starts == rounds < 60:  # each start has a chance of its own
        starts += await oracle.started(one)
        rounds += 1
        one.kill9()
    assert starts > rounds, "nothing was refused: the seed shows nothing with this nats-server"


async def test_what_is_always_refused_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "MOST_STARTS", 5)
    one = node(tmp_path, CIRCLE)
    with pytest.raises(HarnessError, match="import forms a cycle"):
        await oracle.started(one)
    assert one.log().count("import forms a cycle") == 5


async def test_other_refusals_are_reported_at_once(tmp_path: Path) -> None:
    one = node(tmp_path, "port: nonsense")
    with pytest.raises(HarnessError, match="interface conversion"):
        await oracle.started(one)
    assert one.log().count("interface conversion") == 1
