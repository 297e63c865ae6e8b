"""The answers of leaders to nodes that read elsewhere; a node that starts, and the streams that it
does not know yet (cluster/leader_reads.py).
"""

from __future__ import annotations

import struct

import pytest

from jetcluster.cluster.leader_reads import MetaCatchUp
from jetcluster.mesh.api import MeshError
from jetcluster.raft.api import META_GROUP
from jetcluster.replica.reads.confirm import COMMIT_METHOD, LAST_METHOD, confirmed_commit, confirmed_last
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


@virtual_time
async def test_the_leader_says_where_its_log_and_its_stream_stand() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        for _ in range(3):
            await leader.publish(b"s", b"m")
        follower = cluster.followers("S")[0]
        group = follower.replica("S").group
        assert await confirmed_last(follower.services.network, group.gid) == 3
        assert await confirmed_commit(follower.services.network, group) == leader.replica("S").group.commit_index


@virtual_time
async def test_one_that_does_not_lead_says_nothing() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.led("S")
        asker, follower = cluster.followers("S")
        gid = struct.pack("<I", asker.replica("S").group.gid)
        for method in (COMMIT_METHOD, LAST_METHOD):
            with pytest.raises(MeshError):
                await asker.mesh.call(follower.me, method, gid, 2.0)
        others = [node for node in cluster if not node.js.meta.leading]
        with pytest.raises(MeshError):
            await others[0].mesh.call(others[1].me, COMMIT_METHOD, struct.pack("<I", META_GROUP), 2.0)


@virtual_time
async def test_a_meta_index_that_is_never_reached_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose log others did not have, or that said something wrong: the node would never serve."""
    async with Cluster() as cluster:
        await cluster.create("S")
        answers = [10**12]
        ask = MetaCatchUp.ask

        async def commit_of_meta(self: MetaCatchUp) -> int | None:
            return answers.pop() if answers else await ask(self)

        cluster.crash("A")
        monkeypatch.setattr(MetaCatchUp, "ask", commit_of_meta)
        node = cluster.restart("A")
        await cluster.until(lambda: node.js.known.current, what="the meta state is current")
        assert not answers
