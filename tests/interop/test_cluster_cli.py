"""Cluster operations with the stock `nats` command line tool: leaders step down, replicas and servers come and go."""

from __future__ import annotations

import asyncio
import json
import os
import pty
from typing import Any

import pytest

from testkit.harness import ProcessCluster, eventually, frozen
from tests.cluster.test_membership import CONFIG
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]

MESSAGES = 50


class Operator:
    """The tool as a user of the stream's account and as one of the system account; both ask n1."""

    def __init__(self, tool: str, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.user = Cli(tool, cluster.urls[0])
        self.system = Cli(tool, f"nats://s:s@127.0.0.1:{cluster[0].port}")

    async def replicas(self, stream: str) -> tuple[str, set[str]]:
        """The leader and the others, of a stream whose replicas are all current."""
        found: dict[str, Any] = {}

        async def current() -> bool:
            found.update(json.loads(await self.user("stream", "info", stream, "--json")))
            others = found["cluster"].get("replicas") or []
            whole = len(others) + 1 == found["config"]["num_replicas"]
            return bool(found["cluster"].get("leader")) and whole and all(r["current"] for r in others)

        await eventually(current, 20, f"{stream} is not whole", every=0.1)
        assert found["state"]["messages"] == MESSAGES
        return found["cluster"]["leader"], {r["name"] for r in found["cluster"].get("replicas") or []}

    async def meta(self) -> dict[str, Any]:
        """The meta group as its leader sees it. (`nats server request` waits for all of its timeout.)"""
        seen: dict[str, Any] = {}

        async def asked() -> bool:
            for node in self.cluster.nodes:
                found = (await node.monitor("jsz"))["meta_cluster"] if node.alive else {}
                if found.get("leader") == node.name:
                    seen.update(found)
            return bool(seen)

        await eventually(asked, 15, "no meta leader", every=0.1)
        return seen

    async def missed(self, name: str) -> None:
        """Waits until the meta leader shows that a server is gone."""

        async def noticed() -> bool:
            found = await self.meta()
            return any(r["name"] == name and r.get("offline") for r in found.get("replicas", []))

        await eventually(noticed, 15, f"nobody misses {name}", every=0.1)


async def test_leaders_replicas_and_servers(tool: str) -> None:
    async with ProcessCluster(4, config=CONFIG, monitor=True) as cluster:
        operator = Operator(tool, cluster)
        user, system = operator.user, operator.system
        await user("stream", "add", "S", "--subjects", "s", "--replicas", "3", "--defaults")
        await user("consumer", "add", "S", "C", "--pull", "--defaults")
        await user("pub", "s", "x", "--count", str(MESSAGES), "--jetstream")

        leader, others = await operator.replicas("S")
        await user("stream", "cluster", "step-down", "S")
        second, _ = await operator.replicas("S")
        assert second in others
        await user("stream", "cluster", "step-down", "S", "--preferred", leader)
        assert (await operator.replicas("S"))[0] == leader

        owner = (await user.json("consumer", "info", "S", "C", "--json"))["cluster"]
        wanted = owner["replicas"][0]["name"]
        await user("consumer", "cluster", "step-down", "S", "C", "--preferred", wanted)
        assert (await user.json("consumer", "info", "S", "C", "--json"))["cluster"]["leader"] == wanted
        assert "Balanced" in await user("consumer", "cluster", "balance", "S")

        removed = min(others)
        await user("stream", "cluster", "peer-remove", "S", removed, "-f")
        now, rest = await operator.replicas("S")
        assert removed not in {now, *rest}
        for replicas in ("1", "3"):
            await user("stream", "edit", "S", "--replicas", replicas, "-f")
            assert len((await operator.replicas("S"))[1]) == int(replicas) - 1
        assert "Balanced" in await user("stream", "cluster", "balance")

        before = (await operator.meta())["leader"]
        assert "New leader elected" in await system("server", "cluster", "step-down")
        assert (await operator.meta())["leader"] != before
        # Whole servers are the system account's business.
        assert "ensure the account used has system privileges" in await user("server", "cluster", "step-down", rc=1)

        gone = cluster[3]
        gone.kill9()
        await operator.missed("n4")
        await system("server", "cluster", "peer-remove", "n4", "-f")
        now, rest = await operator.replicas("S")
        assert {now, *rest} == {"n1", "n2", "n3"}
        assert (await operator.meta())["cluster_size"] == 3
        assert "OK" in await system("server", "check", "meta", "--expect", "3", "--lag-critical", "100",
                                    "--seen-critical", "10s")  # fmt: skip


async def test_streams_consumers_and_servers_are_evacuated(tool: str) -> None:
    async with ProcessCluster(4, config=CONFIG, monitor=True) as cluster:
        operator = Operator(tool, cluster)
        user, system = operator.user, operator.system
        await user("stream", "add", "S", "--subjects", "s", "--replicas", "3", "--defaults")
        await user("consumer", "add", "S", "one", "--pull", "--replicas", "1", "--defaults")
        await user("consumer", "add", "S", "all", "--pull", "--defaults")
        await user("pub", "s", "x", "--count", str(MESSAGES), "--jetstream")

        home = (await user.json("consumer", "info", "S", "one", "--json"))["cluster"]["leader"]
        await user("consumer", "cluster", "evacuate", "S", "one", home, "--force")
        assert (await user.json("consumer", "info", "S", "one", "--json"))["cluster"]["leader"] != home
        # It has all the places that its stream has.
        assert "10075" in await user("consumer", "cluster", "evacuate", "S", "all", home, "--force", rc=1)
        assert "not in progress" in await user("stream", "cluster", "cancel-move", "S", "--force", rc=1)

        leader, others = await operator.replicas("S")
        await user("stream", "cluster", "evacuate", "S", leader, "--force")

        async def left() -> bool:
            now, rest = await operator.replicas("S")
            return leader not in {now, *rest} and len(rest) == 2

        await eventually(left, 20, f"{leader} still has the stream", every=0.2)
        assert "peer not a member" in await user("stream", "cluster", "evacuate", "S", leader, "--force", rc=1)

        server = min(others)
        said = await system("server", "cluster", "evacuate", server, "--force")
        assert f'Server "{server}": Streams: 0 Consumers: 0' in said
        now, rest = await operator.replicas("S")
        assert server not in {now, *rest}

        await user("consumer", "next", "S", "all", "--count", "10", "--ack")
        await user("consumer", "reset", "S", "all", "--sequence", "5", "--force")
        assert (await user.json("consumer", "info", "S", "all", "--json"))["num_pending"] == MESSAGES - 4


async def test_a_move_is_cancelled(tool: str) -> None:
    """The server that the stream moves to stands still, so the move cannot end."""
    async with ProcessCluster(4, config=CONFIG, monitor=True) as cluster:
        operator = Operator(tool, cluster)
        await operator.user("stream", "add", "S", "--subjects", "s", "--replicas", "3", "--defaults")
        await operator.user("pub", "s", "x", "--count", str(MESSAGES), "--jetstream")
        leader, others = await operator.replicas("S")
        (outside,) = {node.name for node in cluster.nodes} - {leader, *others}
        asked = Cli(tool, f"nats://127.0.0.1:{cluster.node(leader).port}")
        with frozen([cluster.node(outside)]):
            # It waits until the server has no replica any more.
            waiting = asyncio.create_task(asked("stream", "cluster", "evacuate", "S", min(others), "--force", rc=1))

            async def moves() -> bool:
                return "desired" in (await asked.json("stream", "info", "S", "--json"))["cluster"]

            await eventually(moves, 10, "the stream does not move", every=0.1)
            await asked("stream", "cluster", "cancel-move", "S", "--force")
            waiting.cancel()
        assert await operator.replicas("S") == (leader, others)


async def test_a_cluster_that_lost_its_majority_is_rescued(tool: str) -> None:
    """The tool asks servers that tell it 2.15 only, and a person at a terminal."""
    async with ProcessCluster(3, config=CONFIG, monitor=True) as cluster:
        operator = Operator(tool, cluster)
        await operator.user("stream", "add", "S", "--subjects", "s", "--replicas", "1", "--defaults")
        assert "Cluster is healthy with a leader" in await operator.system("server", "cluster", "rescue")
        for node in cluster.nodes[1:]:
            node.kill9()

        async def leaderless() -> bool:
            return not (await cluster[0].monitor("jsz"))["meta_cluster"].get("leader")

        await eventually(leaderless, 15, "there is a meta leader", every=0.1)

        async def done() -> bool:
            """It is refused until the leader has been missed for long enough."""
            said = await at_a_terminal([*operator.system.base, "server", "cluster", "rescue"], "quorum", "1")
            return 'Server "n1" now requires 1 quorum size (was 2)' in said

        await eventually(done, 30, "not rescued", every=1.0)
        await operator.user("stream", "add", "T", "--subjects", "t", "--replicas", "1", "--defaults")


async def at_a_terminal(command: list[str], asked: str, answer: str) -> str:
    """The output of a command that asks one question, and where the terminal's cursor is (ECMA-48, CPR)."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    shown, quiet = b"", 0
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    more = os.read(ours, 65_536)
                except BlockingIOError:
                    await asyncio.sleep(0.05)
                    quiet += 1
                    if quiet == 10 and asked.encode() in shown:
                        os.write(ours, answer.encode() + b"\r")
                    continue
                except OSError:  # the other end is closed
                    break
                shown, quiet = shown + more, 0
                os.write(ours, b"\x1b[24;80R" * more.count(b"\x1b[6n"))
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)
    return shown.decode(errors="replace")


async def test_a_domain_reaches_the_system_account(tool: str) -> None:
    """From API level 5 on the tool asks there by the domain's prefix."""
    async with ProcessCluster(4, config=CONFIG + "jetstream { domain: hub }\n", monitor=True) as cluster:
        operator = Operator(tool, cluster)
        system = Cli(tool, f"nats://s:s@127.0.0.1:{cluster[0].port}")
        system.base += ["--js-domain", "hub"]
        await operator.user("stream", "add", "S", "--subjects", "s", "--replicas", "3", "--defaults")
        before = (await operator.meta())["leader"]
        assert "New leader elected" in await system("server", "cluster", "step-down")
        assert (await operator.meta())["leader"] != before
        gone = cluster[3]
        gone.kill9()
        await operator.missed("n4")
        await system("server", "cluster", "peer-remove", "n4", "-f")
        assert (await operator.meta())["cluster_size"] == 3
