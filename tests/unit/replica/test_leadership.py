from __future__ import annotations

import asyncio
import json
from typing import Any

from jetcluster.replica.leadership import LOST_SECONDS, REPEAT_SECONDS
from tests.unit.cluster.nodes import ACCOUNT, Cluster, Node
from tests.unit.cluster.virtual_loop import virtual_time


def listen(node: Node, kind: str) -> list[dict[str, Any]]:
    """Advisories to the stream's account and to the system account, as they come."""
    found: list[dict[str, Any]] = []
    subject = f"$JS.EVENT.ADVISORY.STREAM.{kind}.>".encode()
    for account in (ACCOUNT, "$SYS"):
        node.accounts[account].subscribe(
            subject, lambda s, r, h, payload, o, at=account: found.append({"to": at, **json.loads(payload)})
        )
    return found


@virtual_time
async def test_a_lost_quorum_is_told_by_those_that_are_left_again_and_again() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        told = listen(leader, "QUORUM_LOST")
        others = [node.name for node in cluster if node is not leader]
        cluster.crash(others[0])
        await cluster.never(lambda: bool(told), 2 * LOST_SECONDS)  # two of three are a quorum
        cluster.crash(others[1])
        await cluster.until(lambda: len(told) == 2, LOST_SECONDS + 5)
        user, system = told
        assert (user["to"], "account" in user, system["to"], system["account"]) == (ACCOUNT, False, "$SYS", ACCOUNT)
        assert user["stream"] == "S"
        assert {r["name"]: (r["current"], r.get("offline", False)) for r in user["replicas"]} == {
            leader.name: (True, False), others[0]: (False, True), others[1]: (False, True),
        }  # fmt: skip
        await asyncio.sleep(REPEAT_SECONDS + 0.5)
        assert len(told) == 4
        cluster.restart(others[0])
        await cluster.led("S")
        await asyncio.sleep(REPEAT_SECONDS + LOST_SECONDS)
        assert len(told) == 4
        assert leader.log.events("warning").count("stream has no quorum") == 1


@virtual_time
async def test_who_does_not_follow_the_leader_of_the_others_says_so_and_answers_no_reads() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        other = next(node for node in cluster if node is not leader)
        replica = other.replica("S")
        await cluster.until(lambda: replica.reads.joined, what="it reads")
        told = listen(other, "LEADER_REFUSED")
        replica.group.refused = "it has another entry 3"
        replica.wake()
        await cluster.until(lambda: len(told) == 2)
        assert {t["to"] for t in told} == {ACCOUNT, "$SYS"}
        assert (told[0]["stream"], told[0]["server"], told[0]["reason"]) == ("S", other.name, "it has another entry 3")
        assert not replica.reads.joined
        replica.group.refused = ""
        await cluster.until(lambda: replica.reads.joined, what="it reads again")
        assert len(told) == 2


@virtual_time
async def test_an_election_is_no_lost_quorum_and_is_told_to_both_accounts() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.create("ONE", 1)
        leader = await cluster.led("S")
        rest = [node for node in cluster if node is not leader]
        lost, elected = listen(rest[0], "QUORUM_LOST"), listen(rest[0], "LEADER_ELECTED")
        listen(rest[1], "LEADER_ELECTED")
        await asyncio.sleep(0.1)
        cluster.crash(leader.name)
        successor = await cluster.led("S")
        await cluster.until(lambda: len(elected) == 2)
        assert [(e["to"], e.get("account"), e["leader"]) for e in elected] == [
            (ACCOUNT, None, successor.name), ("$SYS", ACCOUNT, successor.name),
        ]  # fmt: skip
        assert len(elected[0]["replicas"]) == 3
        await cluster.never(lambda: bool(lost), 2 * LOST_SECONDS)
