"""An account of a real cluster to a folder and back: every kind of stream, consumers in the middle of their work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetcluster.backup.account import AccountReader
from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.point import RestorePoint
from jetcluster.backup.restore import RestoredStream, RestoreRun
from jetcluster.backup.restore_options import RestoreOptions, RestoreRefusedError
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.run import BackupRun
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.verify import check_point
from jetcluster.client.servers import ServerOptions
from jetcluster.clock import SystemClock, SystemRng
from testkit.client import Client
from testkit.consumer_client import Jet
from testkit.harness import ProcessCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

HOUR = 3_600_000_000_000
STREAMS: dict[str, dict[str, Any]] = {
    "ORDERS": {"subjects": ["orders.>"], "allow_direct": True, "num_replicas": 3, "description": "all of them"},
    "LEADER": {"subjects": ["leader.>"], "allow_direct": False},
    "WORK": {"subjects": ["work.>"], "retention": "workqueue", "allow_direct": True, "num_replicas": 3},
    "KV_cfg": {
        "subjects": ["$KV.cfg.>"], "max_msgs_per_subject": 3, "allow_direct": True, "deny_delete": True,
        "allow_rollup_hdrs": True, "discard": "new", "num_replicas": 3,
    },
    "OBJ_files": {
        "subjects": ["$O.files.C.>", "$O.files.M.>"], "allow_direct": True, "discard": "new",
        "allow_rollup_hdrs": True,
    },
    "COPY": {"mirror": {"name": "ORDERS"}, "mirror_direct": True},
    "SUM": {"sources": [{"name": "ORDERS", "filter_subject": "orders.1"}, {"name": "LEADER"}], "allow_direct": True},
    "EMPTY": {"subjects": ["empty"], "allow_direct": True, "first_seq": 100},
    "TTL": {"subjects": ["ttl.>"], "allow_msg_ttl": True, "allow_direct": True},
}  # fmt: skip


class Site:
    """The cluster, and the folder with its backups."""

    def __init__(self, cluster: ProcessCluster, folder: Path) -> None:
        self.options = ServerOptions(tuple(cluster.urls))
        self.storage = FolderStorage(str(folder))
        self.said: list[str] = []

    def read_of(self, stream: str) -> tuple[int, ...]:
        """(new messages, bytes read, messages in the point), as the run told."""
        (line,) = [said for said in self.said if said.startswith(f"{stream}: ")]
        return tuple(int(number) for number in re.findall(r"\d+", line))

    async def backup(self, **options: Any) -> RestorePoint:
        def work() -> RestorePoint:
            with AccountReader(self.options) as account:
                return BackupRun(account, self.storage, SystemClock(), SystemRng(), self.said.append, **options).run()

        return await asyncio.to_thread(work)

    async def restore(self, point: RestorePoint, **options: Any) -> list[RestoredStream]:
        def work() -> list[RestoredStream]:
            with AccountReader(self.options) as account:
                run = RestoreRun(
                    self.options, account, self.storage, point, RestoreOptions(**options), self.said.append,
                    SystemClock(), SystemRng(),
                )  # fmt: skip
                return run.run()

        return await asyncio.to_thread(work)


async def publish(client: Client, subject: Callable[[int], str], count: int, start: int = 0) -> None:
    waiting = [
        asyncio.ensure_future(
            client.request(subject(i), b"%d " % i * (1 + i % 40), headers={"N": str(i)} if i % 3 == 0 else None)
        )
        for i in range(start, start + count)
    ]  # fmt: skip
    for reply in await asyncio.gather(*waiting):
        assert "error" not in reply.json(), reply.data


async def load(client: Client, start: int, count: int) -> None:
    await publish(client, lambda i: f"orders.{i % 7}", count, start)
    await publish(client, lambda i: f"leader.{i % 7}", count // 4, start)
    await publish(client, lambda i: f"work.{i % 2}", count // 8, start)
    await publish(client, lambda i: f"$KV.cfg.key{i % 20}", count // 4, start)
    await publish(client, lambda i: f"$O.files.C.{i // 10}", count // 8, start)
    await client.request(f"ttl.{start}", b"x", headers={"Nats-TTL": "1h"})


async def settled(client: Client, wanted: dict[str, int]) -> None:
    async def done() -> bool:
        infos = [await client.api(f"STREAM.INFO.{name}") for name in wanted]
        return [info["state"]["messages"] for info in infos] == list(wanted.values())

    await eventually(done, 20.0, "the streams are not as full as they should be")


async def consumers(client: Client) -> None:
    """On a three-fold stream: some acknowledged, some pending, some redelivered; on a work queue; a push consumer."""
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": HOUR, "filter_subject": "orders.>"}
    await client.api("CONSUMER.CREATE.ORDERS.d.orders.>", {"stream_name": "ORDERS", "config": config})
    jet = Jet(client, "ORDERS", 3, "")
    for i in range(40):
        (msg,) = await jet.fetch("d")
        if i == 7:
            await client.request(msg.reply.decode(), b"-NAK")
        elif i not in (3, 11, 39):
            await client.request(msg.reply.decode(), b"+ACK")
    config = {"durable_name": "w", "ack_policy": "explicit", "ack_wait": HOUR}
    await client.api("CONSUMER.CREATE.WORK.w", {"stream_name": "WORK", "config": config})
    for i in range(10):
        (msg,) = await Jet(client, "WORK", 3, "").fetch("w")
        if i % 2:
            await client.request(msg.reply.decode(), b"+ACK")
    config = {"durable_name": "p", "deliver_subject": "push.here", "ack_policy": "none"}
    await client.api("CONSUMER.CREATE.LEADER.p", {"stream_name": "LEADER", "config": config})


async def everything(client: Client) -> dict[str, Any]:
    """Configuration, state, messages and consumers of all streams, without what a new stream has of its own."""
    found: dict[str, Any] = {}
    for name in (await client.api("STREAM.NAMES", {}))["streams"] or []:
        info = await client.api(f"STREAM.INFO.{name}", {"deleted_details": True})
        state = {key: info["state"][key] for key in ("messages", "first_seq", "last_seq", "bytes")}
        deleted = set(info["state"].get("deleted") or ())
        first, last = state["first_seq"], state["last_seq"]
        seqs = [seq for seq in range(first, last + 1) if seq not in deleted]
        replies = []
        for at in range(0, len(seqs), 100):
            asked = [b'{"seq":%d}' % seq for seq in seqs[at : at + 100]]
            replies += await asyncio.gather(*(client.request(f"$JS.API.STREAM.MSG.GET.{name}", one) for one in asked))
        wrong = [reply.data for reply in replies if "message" not in reply.json()]
        assert not wrong, (name, wrong[:3])
        there = {}
        for one in (await client.api(f"CONSUMER.LIST.{name}", {}))["consumers"] or []:
            floors = {
                key: {k: one[key][k] for k in ("consumer_seq", "stream_seq")} for key in ("delivered", "ack_floor")
            }
            counts = {key: one[key] for key in ("num_ack_pending", "num_redelivered", "num_pending")}
            there[one["name"]] = {"config": one["config"], **floors, **counts}
        messages = [reply.json()["message"] for reply in replies]
        found[name] = {"config": info["config"], "state": state, "messages": messages, "consumers": there}
    return found


async def test_an_account_goes_and_comes_back(cluster: ProcessCluster, tmp_path: Path) -> None:
    client = await cluster[0].connect()
    for name, config in STREAMS.items():
        await client.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    await load(client, 0, 2000)
    await consumers(client)
    await settled(client, {"COPY": 2000, "SUM": 2000 // 7 + 1 + 500})
    site = Site(cluster, tmp_path)
    first = await site.backup()
    assert {one.name for one in first.streams} == set(STREAMS)
    before = await everything(client)

    # Again, with one in a hundred more: what is read is one in a hundred, and a bit for each stream.
    whole = site.read_of("ORDERS")
    await publish(client, lambda i: f"orders.{i % 7}", 20, 2000)
    for seq in (1, 2, 500, 777, 2020):
        await client.api("STREAM.MSG.DELETE.ORDERS", {"seq": seq})
    await client.api("STREAM.PURGE.LEADER", {"filter": "leader.3"})
    await client.api("STREAM.UPDATE.EMPTY", {"name": "EMPTY", **STREAMS["EMPTY"], "sealed": True})
    await Jet(client, "ORDERS", 3, "").fetch("d")
    await settled(client, {"COPY": 2020})
    site.said.clear()
    second = await site.backup()
    new = site.read_of("ORDERS")
    assert (whole[0], whole[2], new[0], new[2]) == (2000, 2000, 19, 2015)
    assert new[1] < whole[1] * 0.015, (new, whole)
    assert second.written_bytes < first.written_bytes * 0.1
    after = await everything(client)
    assert check_point(site.storage, second, site.said.append) == []

    for name in STREAMS:
        await client.api(f"STREAM.DELETE.{name}")
    made = await site.restore(second)
    assert {one.name: one.messages for one in made} == {
        name: found["state"]["messages"] for name, found in after.items()
    }
    restored = await everything(client)
    for name, found in after.items():
        for key, value in found.items():
            assert restored[name][key] == value, (name, key)
    assert [one.was_there for one in await site.restore(second)] == [True] * len(STREAMS)

    # It goes on where it was: publishes, the mirror, the consumer's next message.
    ack = (await client.request("orders.new", b"next")).json()
    assert ack["seq"] == 2021
    await settled(client, {"COPY": restored["COPY"]["state"]["messages"] + 1})
    await Jet(client, "ORDERS", 3, "").fetch("d")
    assert (await client.request("work.1", b"more")).json()["seq"] == 251
    with pytest.raises(RestoreRefusedError, match="ORDERS"):
        await site.restore(second)

    # The first point is what it was.
    await site.restore(first, overwrite=True)
    back = await everything(client)
    for name, found in before.items():
        assert back[name] == found, name
    client.close()


async def test_a_part_comes_back_under_another_name(tidy: ProcessCluster, tmp_path: Path) -> None:
    client = await tidy[0].connect()
    for name in ("ORDERS", "KV_cfg"):
        await client.api(f"STREAM.CREATE.{name}", {"name": name, **STREAMS[name], "max_age": HOUR})
    await publish(client, lambda i: f"orders.{i % 7}", 50)
    await publish(client, lambda i: f"$KV.cfg.key{i}", 5)
    site = Site(tidy, tmp_path)
    point = await site.backup()
    await site.restore(point, streams=("KV_cfg",), name="KV_old")
    info = await client.api("STREAM.INFO.KV_old", {"subjects_filter": ">"})
    assert info["config"]["subjects"] == ["$KV.old.>"]
    assert set(info["state"]["subjects"]) == {f"$KV.old.key{i}" for i in range(5)}
    await site.restore(
        point, streams=("ORDERS",), name="OLD", subjects=("old.>",), replicas=1, no_limits=True
    )  # fmt: skip
    info = await client.api("STREAM.INFO.OLD")
    assert (info["config"]["subjects"], info["config"]["num_replicas"], info["config"]["max_age"]) == (["old.>"], 1, 0)
    assert info["state"]["messages"] == 50
    client.close()


async def test_many_streams_with_consumers(single: ProcessCluster, tmp_path: Path) -> None:
    """A server has 16 snapshots under way at most: those that are read for consumers alone end at once."""
    client = await single[0].connect()
    for number in range(30):
        name = f"S{number}"
        await client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "allow_direct": True})
        await asyncio.gather(*(client.request(name, os.urandom(4_000)) for _ in range(60)))
        config = {"durable_name": "d", "ack_policy": "explicit"}
        await client.api(f"CONSUMER.CREATE.{name}.d", {"stream_name": name, "config": config})
    site = Site(single, tmp_path)
    assert len((await site.backup()).streams) == 30
    start = time.monotonic()
    second = await site.backup()
    assert second.read_bytes < 30 * 110_000, "a frame of each stream and a window at most, not all of it"
    assert time.monotonic() - start < 20
    client.close()


async def test_what_is_damaged_is_not_restored(tidy: ProcessCluster, tmp_path: Path) -> None:
    client = await tidy[0].connect()
    await client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", **STREAMS["ORDERS"]})
    await publish(client, lambda i: f"orders.{i % 7}", 50)
    site = Site(tidy, tmp_path)
    point = await site.backup()
    await publish(client, lambda i: f"orders.{i % 7}", 1, 50)
    blob = tmp_path / point.streams[0].segments[0].blob.path
    data = blob.read_bytes()
    blob.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    with pytest.raises(DamagedBackupError, match="checksum"):
        await site.restore(point, overwrite=True)
    assert (await client.api("STREAM.INFO.ORDERS"))["state"]["messages"] == 51  # it was looked at first
    await client.api("STREAM.DELETE.ORDERS")
    with pytest.raises(DamagedBackupError, match="checksum"):
        await site.restore(point)

    async def gone() -> bool:
        return not (await client.api("STREAM.NAMES", {}))["streams"]

    await eventually(gone, 20.0, "a half restored stream is still there")
    blob.unlink()
    with pytest.raises(DamagedBackupError, match="missing"):
        await site.restore(point)
    client.close()


async def test_a_killed_command_is_started_again(tidy: ProcessCluster, tmp_path: Path) -> None:
    """`kill -9` in the middle of it; the lock of the dead is taken over at once, as its process was of this machine."""
    client = await tidy[0].connect()
    await client.api("STREAM.CREATE.BIG", {"name": "BIG", "subjects": ["big"], "allow_direct": True})
    noise = os.urandom(100_000)
    for at in range(0, 600, 50):
        await asyncio.gather(*(client.request("big", b"%d" % i + noise) for i in range(at, at + 50)))
    command = [sys.executable, "-m", "jetcluster", "backup", str(tmp_path), "-s", ",".join(tidy.urls), "--no-context"]
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL)

    async def begun() -> bool:
        return (tmp_path / "partial/BIG.json").exists() or process.poll() is not None

    await eventually(begun, 30.0, "no segment was written", every=0.002)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    assert PointCatalog(FolderStorage(str(tmp_path))).names() == []
    assert (tmp_path / "lock.json").exists()
    done = await asyncio.to_thread(subprocess.run, [*command, "--verify"], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert "which has ended: it is taken over" in done.stdout
    told = re.search(r"BIG: (\d+) new messages", done.stdout)
    assert told is not None and 0 < int(told[1]) < 600, done.stdout
    assert "600 messages" in done.stdout and "all verified" in done.stdout
    client.close()


async def test_a_killed_restore_is_started_again(tidy: ProcessCluster, tmp_path: Path) -> None:
    """`kill -9` while a stream is sent; clients publish meanwhile to the one that was restored before it."""
    client = await tidy[0].connect()
    for name in ("ONE", "TWO"):
        config = {"subjects": [name.lower()], "allow_direct": True, "num_replicas": 3}
        await client.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    noise = os.urandom(30_000)
    await publish(client, lambda _: "one", 20)
    await publish(client, lambda _: "two", 20)
    for at in range(0, 400, 20):
        for subject in ("one", "two"):
            await asyncio.gather(*(client.request(subject, b"%d" % i + noise) for i in range(at, at + 20)))
    site = Site(tidy, tmp_path)
    await site.backup()
    before = await everything(client)
    for name in before:
        await client.api(f"STREAM.DELETE.{name}")
    command = [sys.executable, "-m", "jetcluster", "restore", str(tmp_path), "-s", ",".join(tidy.urls), "--no-context"]
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL)

    def noted() -> list[str]:
        """Streams that are done, if another one is begun."""
        found = [json.loads(path.read_bytes())["streams"] for path in (tmp_path / "restores").glob("*.json")]
        done = [name for one in found for name, entry in one.items() if entry and entry["done"]]
        return done if any(entry and not entry["created"] for one in found for entry in one.values()) else []

    async def half() -> bool:
        return bool(noted()) or process.poll() is not None

    await eventually(half, 60.0, "no stream was restored", every=0.002)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    (first,) = noted()
    ack = (await client.request(first.lower(), b"meanwhile")).json()
    assert ack["seq"] == 421
    for options in (["--dry-run"], ["--overwrite"]):
        done = await asyncio.to_thread(subprocess.run, [*command, *options], capture_output=True, text=True)
        assert done.returncode == 0, done
        assert f"{first}: was restored before, and is left as it is now" in done.stdout
    assert "1 streams restored, 1 were there, 1 of them left, verified" in done.stdout
    after = await everything(client)
    assert after[first]["state"]["messages"] == 421
    assert after[first]["messages"][:420] == before[first]["messages"]
    del after[first], before[first]
    assert after == before
    client.close()
