"""The fault of each alert: how it is made, and how it ends. By alert, in the order of a run."""

from __future__ import annotations

import asyncio
import errno
import random
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.alerts.stage import EDGE_BYTES, Stage, each_file
from chaos.nemeses.base import empty
from jetcluster.store import keys
from jetcluster.store.rocks_kv import RocksKv
from testkit.client import create_stream
from testkit.harness import HarnessError, Node, eventually

CLOCK_SECONDS = 30.0
FILLER = "filler"
CHUNK = 1 << 20
STRANGE = 0xFFFF00
"""A stream that no meta group knows."""
MARK = b"a message of %b rots"
ROTTEN = 1000
"""Messages of a stream whose data rots."""
RESTARTS = 3
SEEN = 2.5
"""Seconds in which Prometheus has scraped a node again."""
NOTICED = 90.0
"""Seconds in which rot is noticed: a pass over the data begins every 30 s."""

Act = Callable[[Stage], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Fault:
    alert: str
    about: str
    strike: Act
    heal: Act
    fires_within: float = 60.0
    quiet_within: float = 90.0


# -- processes


async def _kill(stage: Stage) -> None:
    stage.nodes[2].kill9()


async def _start(stage: Stage) -> None:
    if not stage.nodes[2].alive:
        await stage.nodes[2].start()
    await stage.current("ORDERS")


async def _kill_the_only(stage: Stage) -> None:
    await _alone(stage)
    stage.nodes[2].kill9()


async def _start_the_only(stage: Stage) -> None:
    await _start(stage)
    await stage.leader("ALONE")
    await _delete_alone(stage)


async def _lose_the_only(stage: Stage) -> None:
    """A server comes back with an empty store, and had a stream's only replica. A stream with two cannot lose one."""
    await stage.api("STREAM.DELETE.PAIR")
    await _alone(stage)
    node = stage.nodes[2]
    node.kill9()
    empty(node.store)
    await node.start()


async def _give_up_the_only(stage: Stage) -> None:
    await _delete_alone(stage)
    await stage.make_pair()


async def _delete_alone(stage: Stage) -> None:
    await stage.api("STREAM.DELETE.ALONE")
    await stage.current("ORDERS")


async def _alone(stage: Stage) -> None:
    """Makes ALONE, with its one replica on the last node: others take the places before it."""
    config = {"num_replicas": 1}
    for number in range(6):
        await stage.api("STREAM.CREATE.ALONE", {**config, "name": "ALONE", "subjects": ["alone"]})
        if found := await stage.leader("ALONE") is stage.nodes[2]:
            break
        await stage.api("STREAM.DELETE.ALONE")
        name = f"BEFORE{number}"
        await stage.api(f"STREAM.CREATE.{name}", {**config, "name": name, "subjects": [name.lower()]})
    for other in range(number):
        await stage.api(f"STREAM.DELETE.BEFORE{other}")
    if not found:
        raise HarnessError("ALONE is never placed on n3")


async def _restart_often(stage: Stage) -> None:
    node = stage.nodes[2]
    for _ in range(RESTARTS):
        node.kill9()
        await node.start()
        await asyncio.sleep(SEEN)


async def _lame_duck(stage: Stage) -> None:
    stage.nodes[2].signal(signal.SIGUSR2)


async def _end_lame_duck(stage: Stage) -> None:
    stage.nodes[2].kill9()
    await _start(stage)


async def _pause(stage: Stage) -> None:
    """A follower of ORDERS stands still."""
    leader = await stage.leader("ORDERS")
    stage.paused = next(node for node in stage.nodes[:0:-1] if node is not leader)
    stage.paused.signal(signal.SIGSTOP)


async def _resume(stage: Stage) -> None:
    assert stage.paused is not None
    stage.paused.signal(signal.SIGCONT)
    await stage.current("ORDERS")


async def _cut_link(stage: Stage) -> None:
    assert stage.local.links is not None
    await stage.local.links.partition(["n2"], ["n3"])


async def _heal_link(stage: Stage) -> None:
    assert stage.local.links is not None
    await stage.local.links.heal()
    await stage.current("ORDERS")


# -- disks and clocks


async def _fail_store(stage: Stage) -> None:
    stage.local.drill("n1").begin("store.write")


async def _mend_store(stage: Stage) -> None:
    stage.local.drill("n1").end("store.write")


async def _hang_journal(stage: Stage) -> None:
    stage.local.drill("n1").begin("journal.write")


async def _release_journal(stage: Stage) -> None:
    stage.local.drill("n1").end("journal.write")


async def _fill(stage: Stage) -> None:
    with (stage.nodes[2].store / FILLER).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(CHUNK))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


async def _free(stage: Stage) -> None:
    (stage.nodes[2].store / FILLER).unlink()


async def _use_up(stage: Stage) -> None:
    """Nine tenths and more of what the edge may store."""
    async with await stage.edge.connect() as client:
        await create_stream(client, "BULK", ["bulk"], 1)
        for _ in range(int(0.93 * EDGE_BYTES) // (CHUNK // 2)):
            await client.request("bulk", bytes(CHUNK // 2))


async def _delete_bulk(stage: Stage) -> None:
    async with await stage.edge.connect() as client:
        await client.api("STREAM.DELETE.BULK")


async def _slow_disk(stage: Stage) -> None:
    stage.slow.on()


async def _quick_disk(stage: Stage) -> None:
    stage.slow.off()


async def _set_clock(stage: Stage) -> None:
    stage.local.shim("n2").set_clock(CLOCK_SECONDS)


async def _right_clock(stage: Stage) -> None:
    stage.local.shim("n2").set_clock(0.0)


async def _sync_interval(stage: Stage) -> None:
    await _reconfigured(stage, lambda text: text.replace("domain: hub", 'domain: hub, sync_interval: "2m"'))


async def _no_sync_interval(stage: Stage) -> None:
    await _reconfigured(stage, lambda text: text.replace(', sync_interval: "2m"', ""))


async def _reconfigured(stage: Stage, change: Callable[[str], str]) -> None:
    node = stage.nodes[1]
    path = node.root / "server.conf"
    before = path.read_text()
    after = change(before)
    assert after != before, before
    await node.stop()
    path.write_text(after)
    await node.start()
    await stage.current("ORDERS")


# -- data


async def _rot(stage: Stage, node: Node, stream: str) -> None:
    """A message of a new stream that is on the node's disk, and in no memory of it, loses a bit."""
    await stage.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream.lower()], "num_replicas": 3})
    dice, mark = random.Random(1), MARK % stream.encode()
    async with stage.connected() as client:
        for _ in range(ROTTEN):
            await client.request(stream.lower(), mark + dice.randbytes(1000))
    await stage.current(stream)
    await node.stop()
    await node.start()  # with nothing in memory
    await stage.current(stream)
    for path in each_file(node):
        places = _places(path, mark)
        if len(places) > ROTTEN // 2:
            at = places[len(places) // 2] + len(mark) + 100
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 16]))
            return
    raise HarnessError(f"{stream} is in no file of {node.name}: {[path.name for path in each_file(node)]}")


def _places(path: Path, mark: bytes) -> list[int]:
    data, found, at = path.read_bytes(), [], -1
    while (at := data.find(mark, at + 1)) >= 0:
        found.append(at)
    return found


async def _rot_once(stage: Stage) -> None:
    await _rot(stage, stage.nodes[1], "ROT")


async def _renewed(stage: Stage) -> None:
    await eventually(lambda: _has_renewed(stage.nodes[1]), NOTICED, "the data is not renewed", every=0.5)
    await stage.nodes[1].wait_ready()
    await stage.api("STREAM.DELETE.ROT")
    await stage.current("ORDERS")


async def _rot_again(stage: Stage) -> None:
    """A server whose data rots anew within ten minutes does not renew it: the disk may be failing."""
    if not _has_renewed(stage.nodes[1]):
        await _rot_once(stage)
        await _renewed(stage)
    await _rot(stage, stage.nodes[1], "AGAIN")


async def _new_disk(stage: Stage) -> None:
    """For one that damages data twice: the server gets all of it from the others. A stream with two replicas cannot
    lose one."""
    node = stage.nodes[1]
    await stage.api("STREAM.DELETE.PAIR")
    node.kill9()
    empty(node.store)
    await node.start()
    await stage.make_pair()
    await stage.current("ORDERS")
    await stage.current("AGAIN")


def _has_renewed(node: Node) -> bool:
    return any((node.store / "jetstream" / "quarantine").glob("data-*"))


async def _differ(stage: Stage) -> None:
    stage.differ[(await stage.follower_in_pair()).name].on()


async def _agree(stage: Stage) -> None:
    for switch in stage.differ.values():
        switch.off()


async def _strange_data(stage: Stage) -> None:
    await _put(stage, strange=True)


async def _no_strange_data(stage: Stage) -> None:
    await _put(stage, strange=False)


async def _put(stage: Stage, *, strange: bool) -> None:
    """Puts records of a stream that nobody knows into a node's data, or takes them away."""
    node = stage.nodes[1]
    await node.stop()
    kv = RocksKv(node.store / "jetstream" / "data")
    for key in (keys.block(STRANGE, 1), keys.info(STRANGE, 1)):
        if strange:
            kv.put(key, b"left behind")
        else:
            kv.delete(key)
    kv.flush_now()
    kv.close()
    await node.start()
    await stage.current("ORDERS")


# -- mirrors, consumers, metrics


async def _silence(stage: Stage) -> None:
    stage.leaf.add_toxic(type="timeout", stream="downstream", name="silent", attributes={"timeout": 0})


async def _speak(stage: Stage) -> None:
    stage.leaf.destroy_toxic("silent")


async def _narrow(stage: Stage) -> None:
    """Less goes over the leaf link than is written."""
    stage.leaf.add_toxic(type="bandwidth", stream="downstream", name="narrow", attributes={"rate": 8})


async def _widen(stage: Stage) -> None:
    stage.leaf.destroy_toxic("narrow")


async def _forget_acks(stage: Stage) -> None:
    stage.acking = False


async def _ack_again(stage: Stage) -> None:
    stage.acking = True


async def _hold_deliveries(stage: Stage) -> None:
    stage.stuck.on()


async def _deliver(stage: Stage) -> None:
    stage.stuck.off()


async def _few_samples(stage: Stage) -> None:
    stage.cut.on()


async def _all_samples(stage: Stage) -> None:
    stage.cut.off()


FAULTS = (
    Fault("JetclusterServerGone", "SIGKILL of a node", _kill, _start),
    Fault("JetclusterStreamsAway", "SIGKILL of the only server of a stream", _kill_the_only, _start_the_only),
    Fault("JetclusterServersCutOff", "no byte between two of three nodes", _cut_link, _heal_link),
    Fault("JetclusterReplicaLags", "SIGSTOP of a follower while its stream is written", _pause, _resume),
    Fault("JetclusterServerUnhealthy", "a node's data store answers EIO", _fail_store, _mend_store),
    Fault("JetclusterServerNotWell", "a node's journal hangs", _hang_journal, _release_journal),
    Fault("JetclusterRestarts", "three times SIGKILL and start of a node", _restart_often, _start, quiet_within=120.0),
    Fault("JetclusterLameDuckStays", "SIGUSR2 to a node, which waits for its clients", _lame_duck, _end_lame_duck),
    Fault("JetclusterDiskFull", "a node's volume (tmpfs) is filled to the last byte", _fill, _free),
    Fault("JetclusterDiskFilling", "93 % of the edge's max_file_store is published", _use_up, _delete_bulk),
    Fault("JetclusterSlowDisk", "each journal write of a node takes 0.7 s", _slow_disk, _quick_disk),
    Fault("JetclusterClockSkew", "a node's clock jumps by 30 s", _set_clock, _right_clock),
    Fault("JetclusterSyncIntervalsDiffer", "a node is restarted with sync_interval", _sync_interval, _no_sync_interval),
    Fault("JetclusterUpstreamSilent", "nothing comes over the edge's leaf link", _silence, _speak),
    Fault("JetclusterUpstreamLags", "8 KB/s come over the edge's leaf link", _narrow, _widen, quiet_within=180.0),
    Fault("JetclusterConsumerUnacked", "workers take messages and acknowledge none", _forget_acks, _ack_again),
    Fault("JetclusterConsumersStuck", "planted: pull consumers hand nothing out", _hold_deliveries, _deliver),
    Fault("JetclusterStreamsUnassigned", "records of an unknown stream in a node's data",
          _strange_data, _no_strange_data),
    Fault("JetclusterReplicasDiffer", "planted: a follower of a stream with two replicas reads other hashes",
          _differ, _agree),
    Fault("JetclusterMetricsCut", "planted: the edge shows 200 samples at most", _few_samples, _all_samples),
    Fault("JetclusterStreamsLost", "the only server of a stream comes back without its store",
          _lose_the_only, _give_up_the_only),
    Fault("JetclusterDamageFound", "a bit of a node's data flips", _rot_once, _renewed, NOTICED, 180.0),
    Fault("JetclusterReplicaOutOfService", "a bit flips again, within ten minutes; then a new disk",
          _rot_again, _new_disk, NOTICED, 180.0),
)  # fmt: skip
