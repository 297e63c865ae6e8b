"""/raftz: Raft groups of a node."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.node_source import NodeSource
from jetcluster.raft.api import Role


async def test_raftz(node: Any) -> None:
    source = NodeSource(node)
    meta = source.page("raftz", {})["$SYS"]["_meta_"]
    assert (meta["id"], meta["state"], meta["size"], meta["quorum_needed"]) == ("AAAAAAAA", "LEADER", 3, 2)
    assert meta["peers"]["BBBBBBBB"]["last_seen"] == "5s"
    ((name, group),) = source.page("raftz", {"acc": "$G"})["$G"].items()
    assert name.startswith("S-R3F-")
    assert (group["committed"], group["wal"]["messages"]) == (10, 10)
    assert {key: value for key, value in group.items() if key.startswith("ipq_")} == {
        "ipq_proposal_len": 0, "ipq_entry_len": 0, "ipq_resp_len": 0, "ipq_apply_len": 0
    }  # fmt: skip
    raft = node.jetstream.jetstream.replicas[7].group
    raft.last_index, raft.commit_index, raft.applied_index = 18, 15, 13
    (group,) = source.page("raftz", {"acc": "$G"})["$G"].values()
    assert [group[f"ipq_{kind}_len"] for kind in ("proposal", "entry", "apply")] == [3, 8, 2]
    raft.role = Role.FOLLOWER
    (group,) = source.page("raftz", {"acc": "$G"})["$G"].values()
    assert group["ipq_proposal_len"] == 0
    assert source.page("raftz", {"acc": "$G", "group": name}) == source.page("raftz", {"acc": "$G"})
    assert source.page("raftz", {"acc": "$G", "group": "other"}) == source.page("raftz", {"acc": "nobody"}) == {}
