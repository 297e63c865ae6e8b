"""A token of a session that the server which is asked cannot answer yet: another replica does."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.client import Client, Msg, create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import publish_all, wait_direct

pytestmark = [pytest.mark.cluster, pytest.mark.ours("nats-server has no tokens")]

GET = "$JS.API.DIRECT.GET.S"


async def read(client: Client, token: int) -> Msg:
    headers = {"Nats-Min-Last-Sequence": str(token), "Nats-Read-Info": "true"}
    return await client.request(f"{GET}.s", b"", 8.0, headers)


async def test_a_session_is_handed_on_to_another_replica(tmp_path: Path) -> None:
    """The journal of the client's server hangs: the server knows that there is more than it has."""
    cluster = ProcessCluster(3)
    hanging = {node.name: tmp_path / node.name for node in cluster.nodes}
    for node in cluster.nodes:
        node.env["JETCLUSTER_FAULTS"] = f"journal.write=hang@{hanging[node.name]}"
    async with cluster, await cluster[0].connect() as writer:
        await create_stream(writer, "S", ["s"], 3)
        await publish_all(writer, "s", [b"first"])
        await cluster.wait_current("S")
        leader = await cluster.stream_leader("S")
        late, other = (node for node in cluster.nodes if node is not leader)
        async with await late.connect() as reader, await leader.connect() as session:
            await wait_direct(reader, "S", 1)
            answer = await read(reader, 1)
            assert (answer.data, answer.get("Nats-Answered-By")) == (b"first", late.name)
            hanging[late.name].touch()
            token = (await session.request("s", b"second", 8.0)).json()["seq"]
            answer = await read(reader, token)
            assert answer.data == b"second", answer.header
            assert answer.get("Nats-Answered-By") in (leader.name, other.name)
            assert int(answer.get("Nats-Applied-Sequence") or 0) >= token
            # What nobody has is refused, by whoever is asked, with what there is; the token may be shown elsewhere.
            refused = await read(reader, token + 1)
            assert b"503 Min Last Sequence" in refused.header
            assert refused.get("Nats-Applied-Sequence") == str(token)
            token = (await session.request("s", b"third", 8.0)).json()["seq"]
            async with await other.connect() as elsewhere:
                answer = await read(elsewhere, token)
                assert (answer.data, answer.get("Nats-Answered-By")) == (b"third", other.name)
            hanging[late.name].unlink()

            async def again() -> bool:
                answer = await read(reader, token)
                assert answer.data == b"third", answer.header
                return answer.get("Nats-Answered-By") == late.name

            await eventually(again, 30, "the client's server answers again")
