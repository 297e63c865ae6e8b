"""Room for restores that are set aside (api/spool_room.py): no more than an account, or a node, has."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from jetcluster.api.restore_tar import TarRestore
from jetcluster.api.spool_room import SpoolClaim
from jetcluster.errors import ApiError
from jetcluster.model.limits import AccountLimits
from tests.unit.api.fake_cluster import Client

USED = 300
"""Bytes in files of each account, as the fake cluster has it; 200 of them in streams of three replicas."""


class Disk:
    """Restores by clients of one node."""

    def __init__(self, limits: AccountLimits, node: int = sys.maxsize) -> None:
        self.client = Client()
        self.client.context.own_limits = lambda account: limits
        self.client.context.spool_bytes = lambda: node

    async def claim(self, account: str = "A", *, replicas: int = 1, storage: str = "file") -> SpoolClaim:
        name = f"S{replicas}{storage}"
        await self.client.create(name, subjects=[name], num_replicas=replicas, storage=storage)
        assignment = self.client.cluster.machine.assignment("A", name)
        assert assignment is not None
        return SpoolClaim(self.client.context, account, assignment)

    @property
    def aside(self) -> dict[str, int]:
        return dict(self.client.context.restore_room.aside)


async def refusal(claim: SpoolClaim, size: int) -> int:
    with pytest.raises(ApiError) as found:
        await claim.add(size)
    return found.value.err_code


async def test_all_of_an_account_set_aside_what_it_has_left() -> None:
    disk = Disk(AccountLimits(max_storage=USED + 1000))
    one, two, other = await disk.claim(), await disk.claim(), await disk.claim("B")
    await one.add(600)
    await two.add(400)
    assert await refusal(one, 1) == await refusal(two, 1) == 10002
    await other.add(1000)
    assert disk.aside == {"A": 1000, "B": 1000}
    one.end()
    one.end()
    await two.add(600)
    assert await refusal(two, 1) == 10002
    two.end()
    other.end()
    assert disk.aside == {}


async def test_all_of_a_node_set_aside_what_it_has_left() -> None:
    disk = Disk(AccountLimits(), node=1000)
    one, other = await disk.claim(), await disk.claim("B")
    await one.add(600)
    assert await refusal(other, 401) == 10023
    await other.add(400)
    assert await refusal(one, 1) == 10023
    assert disk.aside == {"A": 600, "B": 400}


@pytest.mark.parametrize(("storage", "room"), [("file", 1000 - USED), ("memory", 50)])
async def test_the_limit_is_that_of_the_streams_storage(storage: str, room: int) -> None:
    claim = await Disk(AccountLimits(max_storage=1000, max_memory=50)).claim(storage=storage)
    await claim.add(room)
    assert await refusal(claim, 1) == 10002


async def test_the_limit_of_a_tier_is_for_each_replica() -> None:
    tiers = {"R1": AccountLimits(max_storage=150, replicas=1), "R3": AccountLimits(max_storage=500, replicas=3)}
    disk = Disk(AccountLimits(tiers=tiers))
    for replicas, room in ((1, 150 - 100), (3, 1500 - 200)):
        claim = await disk.claim(replicas=replicas)
        await claim.add(room)
        assert await refusal(claim, 1) == 10002
        claim.end()


async def test_an_account_that_is_full_has_no_room_at_all() -> None:
    claim = await Disk(AccountLimits(max_storage=USED - 1)).claim()
    assert await refusal(claim, 1) == 10002


async def test_a_file_that_is_closed_takes_no_room() -> None:
    class Closed:
        async def append(self, data: bytes) -> None: ...

        async def close(self) -> None:
            raise OSError

    disk = Disk(AccountLimits())
    spool: Any = Closed()
    tar = TarRestore(spool, await disk.claim())
    await tar.keep(bytes(7))
    assert disk.aside == {"A": 7}
    with pytest.raises(OSError, match=r".*"):
        await tar.close()
    assert disk.aside == {}
