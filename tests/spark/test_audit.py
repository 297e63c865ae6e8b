"""Replicas and mirrors that hold the same pass; what one of them holds otherwise is found to the byte, and a replica
that is behind or does not answer is reported as that."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

import pytest

from jetcluster.client.connection import Connection
from jetcluster.pipeline import audit
from jetcluster.pipeline.copies import Copy
from jetcluster.pipeline.result import UsageError
from testkit.harness import frozen
from tests.spark.planting import change_payload
from tests.spark.streams import create, fill, stored, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from testkit.harness import ProcessCluster

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

ROWS = 1500


def asked(cluster: ProcessCluster, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    audit.add_arguments(parser)
    args = parser.parse_args([*words, "--server", ",".join(cluster.urls), "--range", "400"])
    args.json = True
    audit.check(args)
    return args


def filled(connection: Connection, name: str) -> None:
    create(connection, name)
    fill(connection, [(f"{name.lower()}.a", b"%s-%05d" % (name.encode(), n), {"K": str(n % 3)}) for n in range(ROWS)])


def test_replicas_and_mirrors_that_are_the_same(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    filled(connection, "WHOLE")
    create(connection, "TWIN", subjects=None, mirror={"name": "WHOLE"}, num_replicas=1)
    create(connection, "PART", subjects=None, mirror={"name": "WHOLE", "filter_subject": "whole.b"}, num_replicas=1)
    until(lambda: stored(connection, "TWIN") == ROWS, what="the mirror")  # before a deletion that it would not copy
    connection.api("STREAM.MSG.DELETE.WHOLE", {"seq": 7})
    connection.api("STREAM.MSG.DELETE.TWIN", {"seq": 7})
    result = audit.run(spark, asked(cluster, "--stream", "WHOLE", "--mirrors"))
    replicas, mirror = result.fields["compared"]
    assert (result.code, result.fields["damage"], result.fields["unreachable"]) == (0, [], {})
    assert sorted(replicas["copies"]) == ["n1", "n2", "n3"]
    assert (replicas["messages"], replicas["ranges"], replicas["to"]) == (ROWS - 1, 4, ROWS)
    assert (mirror["with"], len(mirror["copies"]), mirror["messages"]) == ("TWIN", 2, ROWS - 1)
    assert list(result.fields["left_out"]) == ["PART"]


async def _restart_changed(cluster: ProcessCluster, at: int, old: bytes, new: bytes) -> int:
    node = cluster[at]
    await node.stop()
    changed = change_payload(node, old, new)
    await node.start()
    await cluster.wait_meta()
    return changed


def test_one_changed_byte_on_one_replica_is_found(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    filled(connection, "HURT")
    others = [url for n, url in enumerate(cluster.urls) if n != 2]
    try:
        assert asyncio.run(_restart_changed(cluster, 2, b"HURT-00999", b"HURT-00998")) == 1
        asyncio.run(cluster.wait_current("HURT"))
        result = audit.run(spark, asked(cluster, "--stream", "HURT"))
        (found,) = result.fields["damage"]
        assert (result.code, found["first"], found["sequences"], found["odd"]) == (1, 1000, [1000], ["n3"])
        assert (found["range"], found["differs"]) == ([801, 1200], ["data"])
        assert {name: copy["data"] for name, copy in found["copies"].items()} == {
            "n1": "HURT-00999", "n2": "HURT-00999", "n3": "HURT-00998"
        }  # fmt: skip
        assert audit.run(spark, asked(cluster, "--stream", "HURT", "--peers", "n1,n2")).code == 0
    finally:
        with Connection(others) as admin:
            admin.api("STREAM.DELETE.HURT")


def test_a_replica_that_stands_still_is_no_damage(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection
) -> None:
    filled(connection, "SLOW")
    leader = connection.api("STREAM.INFO.SLOW")["cluster"]["leader"]
    node = next(n for n in cluster.nodes if n.name != leader)
    with frozen([node]):
        with Connection([url for url in cluster.urls if url != node.url]) as admin:
            fill(admin, [("slow.a", b"more") for _ in range(50)])
        words = asked(cluster, "--stream", "SLOW")
        words.server = ",".join(url for url in cluster.urls if url != node.url)
        result = audit.run(spark, words)
    assert (result.code, result.fields["damage"], list(result.fields["unreachable"])) == (1, [], [node.name])
    assert (len(result.fields["compared"][0]["copies"]), result.fields["compared"][0]["to"]) == (2, ROWS + 50)


def test_a_replica_that_dies_while_it_is_read(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had said how far it is. That it is gone is reported, and is no damage; the others are compared."""
    filled(connection, "DIES")
    leader = asyncio.run(cluster.stream_leader("DIES"))
    node = next(one for one in cluster.nodes if one is not leader)
    summary, reading = audit.Audit._summary, Copy.reading
    soon = {"retryTimeout": "1s", "replicaWait": "1s"}  # for the dead one: the others may be slow on a busy machine

    def kills(self: audit.Audit, copy: Copy, job: audit.Comparison) -> DataFrame:
        if copy.name == node.name:
            node.kill9()
        return summary(self, copy, job)

    monkeypatch.setattr(audit.Audit, "_summary", kills)
    monkeypatch.setattr(
        Copy, "reading", lambda copy, *words: reading(copy, *words) | (soon if copy.name == node.name else {})
    )
    try:
        result = audit.run(spark, asked(cluster, "--stream", "DIES"))
    finally:
        asyncio.run(node.start())
        asyncio.run(cluster.wait_current("DIES"))
    (compared,) = result.fields["compared"]
    assert (result.code, result.fields["damage"], list(result.fields["unreachable"])) == (1, [], [node.name])
    assert (node.name in compared["copies"], len(compared["copies"]), compared["messages"]) == (False, 2, ROWS)


def test_two_streams(spark: SparkSession, cluster: ProcessCluster, connection: Connection) -> None:
    """A restored one would be the same in sequences, times, headers and gaps."""
    for name, seventh in (("ONE", "7"), ("TWO", "x")):
        create(connection, name, num_replicas=1)
        fill(connection, [("one.a" if name == "ONE" else "two.a", b"%d" % n, {"N": seventh}) for n in range(20)])
    connection.api("STREAM.MSG.DELETE.TWO", {"seq": 1})
    result = audit.run(spark, asked(cluster, "--stream", "ONE", "--against", "TWO"))
    (found,) = result.fields["damage"]
    assert (result.code, found["first"], found["count"]) == (1, 1, 20)
    assert (found["differs"], found["copies"]["TWO"]) == (["missing"], None)


def test_a_stream_that_was_published_anew(spark: SparkSession, cluster: ProcessCluster, connection: Connection) -> None:
    """Messages are matched by the sequences that restore noted: it closes gaps, and headers and times are others."""
    create(connection, "OLD", num_replicas=1, subjects=["new.>"])
    fill(connection, [(f"new.{n % 3}", b"%d" % n, {"H": "1"}) for n in range(1, 61)])
    connection.api("STREAM.MSG.DELETE.OLD", {"seq": 10})
    connection.api("STREAM.UPDATE.OLD", {"name": "OLD", "subjects": ["old.>"], "allow_direct": True})
    create(connection, "NEW", num_replicas=1)
    again = [(f"new.{n % 3}", b"%d" % n, {"Jc-Source-Seq": str(n)}) for n in range(1, 61) if n != 10]
    fill(connection, [*again, ("new.x", b"of somebody else")])
    words = ["--stream", "OLD", "--against", "NEW", "--by-source-seq"]
    result = audit.run(spark, asked(cluster, *words))
    assert (result.code, result.fields["republished"]["kinds"]) == (0, {})
    assert (result.fields["republished"]["messages"], result.fields["republished"]["unmarked"]) == (59, 1)
    fill(connection, [("new.1", b"61", {"Jc-Source-Seq": "61"}), ("new.2", b"5", {"Jc-Source-Seq": "5"})])
    connection.api("STREAM.MSG.DELETE.NEW", {"seq": 20})
    result = audit.run(spark, asked(cluster, *words))
    kinds = result.fields["republished"]["kinds"]
    assert (result.code, kinds["missing"], kinds["extra"], kinds["twice"]) == (1, 1, 1, 2)
    assert kinds["reordered"] == 1


def test_what_cannot_be_compared_is_refused(cluster: ProcessCluster, connection: Connection) -> None:
    create(connection, "THERE", num_replicas=1)
    for words in (
        ["--stream", "ONE", "--against", "ONE"],
        ["--stream", "ONE", "--against", "TWO", "--mirrors"],
        ["--stream", "NOWHERE"],
        ["--stream", "THERE", "--peers", "n9"],
    ):
        with pytest.raises(UsageError):
            asked(cluster, *words)
