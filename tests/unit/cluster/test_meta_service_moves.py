"""Other peers of a stream, by the meta leader: moves, numbers of replicas, what takes them back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.meta.state import Assignment
from tests.unit.cluster.meta_leader import NO_LIMITS, Leader


async def test_another_node_takes_the_place_of_a_removed_peer() -> None:
    leader = Leader(4)
    before = Assignment.from_dict((await leader.create("S", num_replicas=3))["assignment"])
    (spare,) = leader.online - set(before.peers)
    body = {"request": "r", "account": "A", "name": "S", "peer": before.peers[1]}
    result = await leader.service.handle("stream_peer_remove", body)
    assert result["assignment"]["peers"] == [before.peers[0], spare, before.peers[2]]

    async def refused(**other: str) -> int:
        with pytest.raises(ApiError) as caught:
            await leader.service.handle("stream_peer_remove", {**body, "request": "q", **other})
        return caught.value.err_code

    assert await refused(name="T") == 10059
    assert await refused(peer=before.peers[1]) == await refused(peer="nobody") == 10040
    leader.online.discard(before.peers[1])
    assert await refused(peer=spare) == 10075  # nobody is there to come


async def test_a_stream_leaves_a_server_for_one_with_tags() -> None:
    leader = Leader(5)
    before = Assignment.from_dict((await leader.create("S", num_replicas=3))["assignment"])
    plain, fast = sorted(leader.online - set(before.peers))
    node = {"kind": "node", "request": "t", "peer": fast, "name": fast, "tags": ["fast"], "jetstream": True}
    leader.apply(json.dumps(node).encode())
    body = {"request": "r", "account": "A", "name": "S", "server": "", "cluster": "", "tags": ["fast"]}

    async def refused(**other: Any) -> int:
        with pytest.raises(ApiError) as caught:
            await leader.service.handle("stream_leave", {**body, "request": "q", **other})
        return caught.value.err_code

    assert await refused(name="T") == 10059
    assert await refused(server="nobody") == await refused(server=before.peers[0], cluster="D") == 10044
    assert await refused(server=plain) == 10040
    assert await refused(server=before.peers[0], tags=["slow"]) == 10005
    leader.led_by = max(before.peers)
    after = (await leader.service.handle("stream_leave", body))["assignment"]["peers"]
    assert fast in after and leader.led_by in after and len(after) == 3
    named = {**body, "request": "n", "server": leader.led_by, "tags": []}
    assert leader.led_by not in (await leader.service.handle("stream_leave", named))["assignment"]["peers"]


async def test_a_move_that_was_taken_back_is_not_taken_up_again() -> None:
    """Its servers are still the stream's, and the placement of before does not allow them."""
    leader = Leader(6)
    for peer in leader.online:
        tags = ["slow" if peer <= "n3" else "fast"]
        command = {"kind": "node", "request": f"t{peer}", "peer": peer, "name": peer, "tags": tags, "jetstream": True}
        leader.apply(json.dumps(command).encode())
    slow, fast = ({"placement": {"tags": [tag]}, "num_replicas": 3} for tag in ("slow", "fast"))
    before = Assignment.from_dict((await leader.create("S", **slow))["assignment"])
    away = Assignment.from_dict(await leader.update("S", **fast))
    assert not set(away.peers) & set(before.peers)
    body = {"request": "b", "account": "A", "name": "S", "revision": away.revision}
    back = Assignment.from_dict((await leader.service.handle("stream_move_cancel", body))["assignment"])
    assert (back.peers, back.config["placement"]) == (before.peers, slow["placement"])
    one_moved = [before.peers[0], *away.peers[:2]]
    with pytest.raises(ApiError) as caught:
        await leader.service.handle("stream_stay", {**body, "revision": back.revision, "peers": one_moved})
    assert caught.value.err_code == 10129


async def test_a_removal_that_is_under_way_is_taken_back() -> None:
    leader = Leader(4)
    before = Assignment.from_dict((await leader.create("S", num_replicas=3))["assignment"])
    body = {"request": "r", "account": "A", "name": "S"}
    removed = (await leader.service.handle("stream_peer_remove", {**body, "peer": before.peers[1]}))["assignment"]
    back = {**body, "request": "b", "revision": removed["revision"], "peers": list(before.peers)}
    for wrong in (
        {"name": "T"}, {"revision": before.revision}, {"peers": [before.peers[1]]},
        {"peers": [before.peers[0]] * 3}, {"peers": [*before.peers[:2], "nobody"]},
    ):  # fmt: skip
        with pytest.raises(ApiError) as caught:
            await leader.service.handle("stream_stay", {**back, **wrong})
        assert caught.value.err_code == 10129
    assert (await leader.service.handle("stream_stay", back))["assignment"]["peers"] == list(before.peers)


async def test_a_number_that_nobody_asked_for_is_not_taken_back() -> None:
    """A server was removed and there was no other; then there is one. A member that asks may be of an older version."""
    leader = Leader(4)
    old = Assignment.from_dict((await leader.create("S", num_replicas=3))["assignment"])
    a, b, c = old.peers
    (spare,) = leader.online - set(old.peers)

    async def given(*peers: str) -> Assignment:
        now = leader.machine.assignment("A", "S")
        assert now is not None
        result = await leader.service.set_peers(now, peers, f"r{now.revision}")
        return Assignment.from_dict(result["assignment"])

    await given(a, b)
    short = await given(a, spare)
    stay = {"account": "A", "name": "S", "limits": NO_LIMITS, "request": "s", "peers": [a, b]}
    back = (await leader.service.handle("stream_stay", {**stay, "revision": short.revision}))["assignment"]
    assert (back["peers"], back["config"]["num_replicas"]) == ([a, b], 3), "as few as there are"
    filled = await given(a, b, c)
    with pytest.raises(ApiError) as caught:
        await leader.service.handle("stream_stay", {**stay, "request": "t", "revision": filled.revision})
    assert caught.value.err_code == 10129
    assert leader.machine.assignment("A", "S") == filled


async def test_another_number_of_replicas_is_taken_back() -> None:
    leader = Leader(4)
    before = Assignment.from_dict((await leader.create("S"))["assignment"])
    config = {**before.config, "num_replicas": 3, "description": "kept"}
    body = {"account": "A", "name": "S", "limits": NO_LIMITS}
    update = {**body, "request": "u", "config": config}
    scaled = (await leader.service.handle("stream_update", update))["assignment"]
    back = {**body, "request": "b", "revision": scaled["revision"], "peers": list(before.peers)}
    few = {**NO_LIMITS, "max_storage": 10}
    await leader.service.handle("stream_update", {**update, "request": "m", "config": {**config, "max_bytes": 100}})
    with pytest.raises(ApiError) as caught:
        await leader.service.handle("stream_stay", back)
    assert caught.value.err_code == 10129, "the stream has changed since it was looked at"
    back["revision"] = leader.machine.assignment("A", "S").revision  # type: ignore[union-attr]
    with pytest.raises(ApiError) as caught:
        await leader.service.handle("stream_stay", {**back, "limits": few})
    assert caught.value.err_code == 10047
    after = (await leader.service.handle("stream_stay", {**back, "request": "c"}))["assignment"]
    assert after["peers"] == list(before.peers)
    assert after["config"] == {**config, "num_replicas": 1, "max_bytes": 100}


async def test_a_number_of_replicas_is_not_taken_back_with_a_configuration_that_is_just_decided() -> None:
    leader = Leader(4)
    before = Assignment.from_dict((await leader.create("S"))["assignment"])
    config = {**before.config, "num_replicas": 3}
    body = {"account": "A", "name": "S", "limits": NO_LIMITS}
    scaled = (await leader.service.handle("stream_update", {**body, "request": "u", "config": config}))["assignment"]
    back = {**body, "request": "b", "revision": scaled["revision"], "peers": list(before.peers)}
    leader.commit.clear()
    late = {**body, "request": "l", "config": {**config, "max_msgs": 7}}
    update = asyncio.create_task(leader.service.handle("stream_update", late))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(leader.service.handle("stream_stay", back), 1)
    assert caught.value.err_code == 10226
    leader.commit.set()
    back["revision"] = (await update)["assignment"]["revision"]
    after = (await leader.service.handle("stream_stay", {**back, "request": "c"}))["assignment"]
    assert after["config"] == {**config, "max_msgs": 7, "num_replicas": 1}


async def test_a_single_replica_that_is_gone_is_not_replaced_by_an_empty_one() -> None:
    leader = Leader(2)
    (peer,) = (await leader.create("S"))["assignment"]["peers"]
    leader.online.discard(peer)
    with pytest.raises(ApiError) as caught:
        body = {"request": "r", "account": "A", "name": "S", "peer": peer}
        await leader.service.handle("stream_peer_remove", body)
    assert caught.value.err_code == 10075


async def test_a_move_keeps_the_peers_that_the_new_placement_allows() -> None:
    leader = Leader(4)
    for peer, tags in (("n1", ["x"]), ("n2", ["x", "y"]), ("n3", ["y"]), ("n4", ["y"])):
        await leader.service.handle(
            "node", {"request": f"t{peer}", "peer": peer, "name": peer, "tags": tags, "jetstream": True}
        )
    first = await leader.create("S", num_replicas=2, placement={"tags": ["x"]})
    assert set(first["assignment"]["peers"]) == {"n1", "n2"}
    moved = await leader.update("S", num_replicas=2, placement={"tags": ["y"]})
    assert moved["peers"][0] == "n2" and moved["peers"][1] in {"n3", "n4"}
    for placement, text in (({"tags": ["z"]}, "tags not matched ['z']"), ({"cluster": "D"}, "not enabled in cluster")):
        with pytest.raises(ApiError) as caught:
            await leader.update("S", num_replicas=2, placement=placement)
        assert caught.value.err_code == 10005 and text in caught.value.description
    back = await leader.update("S", num_replicas=2, placement={"cluster": "C"})
    assert back["peers"] == moved["peers"]


async def test_a_stream_that_has_lost_a_replica_gets_another_with_its_new_placement() -> None:
    """A server was removed, and there was no other for its replica; the new placement has one, or none."""
    leader = Leader(4)
    for peer, tags in (("n1", ["x"]), ("n2", ["x"]), ("n3", ["x"]), ("n4", ["y"])):
        await leader.service.handle(
            "node", {"request": f"t{peer}", "peer": peer, "name": peer, "tags": tags, "jetstream": True}
        )
    old = Assignment.from_dict((await leader.create("S", num_replicas=3, placement={"tags": ["x"]}))["assignment"])
    await leader.service.set_peers(old, old.peers[:2], "fewer")
    with pytest.raises(ApiError) as caught:
        await leader.update("S", num_replicas=3, placement={"tags": ["y"]})
    assert caught.value.err_code == 10005
    moved = await leader.update("S", num_replicas=3, placement={})
    assert moved["peers"][:2] == list(old.peers[:2]) and len(set(moved["peers"])) == 3


async def test_peers_that_were_chosen_for_another_placement_are_not_assigned() -> None:
    """The new placement keeps all peers, so that these do not tell; its update is decided while a peer is removed."""
    leader = Leader(4)
    old = Assignment.from_dict((await leader.create("S", num_replicas=3))["assignment"])
    for peer in old.peers:
        tags = {"request": f"t{peer}", "peer": peer, "name": peer, "tags": ["x"], "jetstream": True}
        await leader.service.handle("node", tags)

    async def removed(request: str) -> int:
        body = {"request": request, "account": "A", "name": "S", "peer": old.peers[1]}
        with pytest.raises(ApiError) as caught:
            await leader.service.handle("stream_peer_remove", body)
        return caught.value.err_code

    leader.commit.clear()
    update = asyncio.ensure_future(leader.update("S", num_replicas=3, placement={"tags": ["x"]}))
    await asyncio.sleep(0)
    asked = asyncio.ensure_future(removed("r1"))
    await asyncio.sleep(0)
    leader.commit.set()
    assert tuple((await update)["peers"]) == old.peers
    assert await asked == 10226
    with pytest.raises(ApiError, match="10226"):
        await leader.service.set_peers(old, leader.service.peers_without(old, old.peers[1]), "late")
    assert await removed("r2") == 10075  # nobody else has the tag
