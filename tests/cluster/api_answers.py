"""The answers of `$JS.API`: what is asked, in order, and the shape of each answer. Those of nats-server are in
api_answers.json, from a server alone ("1") and from a cluster of three ("3"); test_api_answers.py compares.

    python -m tests.cluster.api_answers          # asks the nats-server of this machine again
    python -m tests.cluster.api_answers --add    # once more: what is not there this time is there sometimes

A shape is what an answer is made of, in its order: an object is a list of [key, shape], a list is {"of": shape of its
elements, all taken together}, anything else is the name of its type, an error's `code` and `err_code` are the numbers.
Keys that are only there sometimes have a "?".
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from testkit.client import Client
from testkit.harness import ProcessCluster, eventually

RECORD = Path(__file__).with_name("api_answers.json")
RUNS = 3
CONFIG = """accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
no_auth_user: a
"""
SILENT = "no answer"
MAPS = {"metadata", "tiers"}
"""Objects whose keys are data."""
MOMENTARY = {"lag"}
"""Keys that are there or not as it happens: they are passed over."""
SECOND = 10**9
Shape = Any


class Asked(NamedTuple):
    """One request, or what is done between two."""

    name: str
    """The endpoint, and what is special about this request."""
    subject: str
    body: Any = None
    system: bool = False
    """The system account asks."""
    act: Callable[[Conversation], Any] | None = None


class Conversation:
    """One run of all requests."""

    def __init__(self, client: Client, system: Client, cluster: ProcessCluster) -> None:
        self.client = client
        self.system = system
        self.cluster = cluster

    async def publish(self, count: int = 5) -> None:
        for number in range(count):
            await self._ack(f"s.{number % 3}")

    async def _ack(self, subject: str) -> None:
        async def acked() -> bool:
            return b'"seq"' in (await self.client.request(subject, b"x", 2.0, {"X": "y"})).data

        await eventually(acked, 10.0, f"nobody takes {subject}")

    async def fetch(self) -> None:
        """Two messages, one of which is acknowledged."""
        got: list[bytes] = []
        self.client.subscribe("got", lambda msg: got.append(msg.reply))
        self.client.publish("$JS.API.CONSUMER.MSG.NEXT.S.pull", b'{"batch":2,"expires":2000000000}', b"got")
        await eventually(lambda: len(got) == 2, 5.0, "nothing was delivered")
        self.client.publish(got[0].decode(), b"+ACK")
        await self.client.flush()
        await asyncio.sleep(0.3)

    async def settle(self) -> None:
        await asyncio.sleep(1.0)

    async def ask(self, asked: Asked) -> Shape:
        client = self.system if asked.system else self.client
        body = b"" if asked.body is None else json.dumps(asked.body).encode()
        try:
            answer = await client.request(f"$JS.API.{asked.subject}", body, 2.5)
        except TimeoutError:
            return SILENT
        return shape(json.loads(answer.data)) if answer.data else SILENT


def requests(replicas: int) -> list[Asked]:
    """In this order: later ones are about what earlier ones made."""
    return [*_of_streams(replicas), *_of_consumers(), *_of_the_rest(replicas)]


def _of_streams(replicas: int) -> list[Asked]:
    stream = {"name": "S", "subjects": ["s.>"], "num_replicas": replicas}
    full = {
        "name": "F",
        "subjects": ["f.>"],
        "num_replicas": replicas,
        "description": "d",
        "retention": "limits",
        "max_consumers": 9,
        "max_msgs": 9,
        "max_bytes": 9000,
        "max_msgs_per_subject": 3,
        "max_age": 60 * SECOND,
        "max_msg_size": 99,
        "discard": "old",
        "storage": "memory",
        "no_ack": False,
        "duplicate_window": SECOND,
        "compression": "none",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "metadata": {"a": "b"},
        "first_seq": 5,
        "consumer_limits": {"inactive_threshold": 60 * SECOND, "max_ack_pending": 9},
        "allow_msg_ttl": True,
        "subject_transform": {"src": "f.>", "dest": "f.>"},
        "republish": {"src": "f.>", "dest": "r.>", "headers_only": True},
        "subject_delete_marker_ttl": SECOND,
        "allow_atomic": True,
        "allow_msg_schedules": True,
    }

    other = {"name": "O", "subjects": ["s.1"], "num_replicas": replicas}
    mirror = {"name": "M", "mirror": {"name": "S"}, "num_replicas": replicas}
    sourcing = {"name": "Q", "sources": [{"name": "S", "filter_subject": "s.1"}], "num_replicas": replicas}
    return [
        Asked("unknown subject", "STREAM.NOTHING.S"),
        Asked("INFO", "INFO"),
        Asked("STREAM.NAMES of nothing", "STREAM.NAMES"),
        Asked("STREAM.LIST of nothing", "STREAM.LIST"),
        Asked("STREAM.CREATE", "STREAM.CREATE.S", stream),
        Asked("", "", act=Conversation.settle),
        Asked("STREAM.CREATE again", "STREAM.CREATE.S", stream),
        Asked("STREAM.CREATE of another one by that name", "STREAM.CREATE.S", {**stream, "max_msgs": 1}),
        Asked("STREAM.CREATE of another name", "STREAM.CREATE.X", stream),
        Asked("STREAM.CREATE of taken subjects", "STREAM.CREATE.O", other),
        Asked("STREAM.CREATE without a body", "STREAM.CREATE.X"),
        Asked("STREAM.CREATE with all options", "STREAM.CREATE.F", full),
        Asked("STREAM.CREATE of a mirror", "STREAM.CREATE.M", mirror),
        Asked("STREAM.CREATE with sources", "STREAM.CREATE.Q", sourcing),
        Asked("", "", act=Conversation.settle),
        Asked("STREAM.INFO of nothing stored", "STREAM.INFO.S"),
        Asked("", "", act=Conversation.publish),
        Asked("", "", act=Conversation.settle),
        Asked("INFO with streams", "INFO"),
        Asked("STREAM.UPDATE", "STREAM.UPDATE.S", {**stream, "description": "d"}),
        Asked("STREAM.UPDATE of none", "STREAM.UPDATE.X", {**stream, "name": "X"}),
        Asked("STREAM.UPDATE of what is fixed", "STREAM.UPDATE.S", {**stream, "storage": "memory"}),
        Asked("STREAM.INFO", "STREAM.INFO.S"),
        Asked("STREAM.INFO with subjects", "STREAM.INFO.S", {"subjects_filter": ">"}),
        Asked("STREAM.INFO of a mirror", "STREAM.INFO.M"),
        Asked("STREAM.INFO with sources", "STREAM.INFO.Q"),
        Asked("STREAM.INFO with all options", "STREAM.INFO.F"),
        Asked("STREAM.INFO of none", "STREAM.INFO.X"),
        Asked("STREAM.NAMES", "STREAM.NAMES"),
        Asked("STREAM.NAMES by subject", "STREAM.NAMES", {"subject": "s.1"}),
        Asked("STREAM.LIST", "STREAM.LIST"),
        Asked("STREAM.MSG.GET", "STREAM.MSG.GET.S", {"seq": 1}),
        Asked("STREAM.MSG.GET of the last one", "STREAM.MSG.GET.S", {"last_by_subj": "s.1"}),
        Asked("STREAM.MSG.GET of none", "STREAM.MSG.GET.S", {"seq": 99}),
        Asked("STREAM.MSG.GET of no stream", "STREAM.MSG.GET.X", {"seq": 1}),
        Asked("STREAM.MSG.DELETE", "STREAM.MSG.DELETE.S", {"seq": 2}),
        Asked("STREAM.MSG.DELETE again", "STREAM.MSG.DELETE.S", {"seq": 2}),
        Asked("STREAM.MSG.DELETE of no stream", "STREAM.MSG.DELETE.X", {"seq": 2}),
        Asked("STREAM.INFO with deleted", "STREAM.INFO.S", {"deleted_details": True}),
    ]


def _of_consumers() -> list[Asked]:
    def consumer(name: str, **config: Any) -> dict[str, Any]:
        config = {"ack_policy": "explicit", **config}
        return {"stream_name": "S", "config": {"durable_name": name, **config} if name else config}

    every = {
        "description": "d",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 2,
        "ack_wait": SECOND,
        "max_deliver": 4,
        "backoff": [SECOND, 2 * SECOND],
        "filter_subjects": ["s.1", "s.2"],
        "replay_policy": "original",
        "sample_freq": "50%",
        "max_waiting": 9,
        "max_ack_pending": 9,
        "headers_only": True,
        "max_batch": 9,
        "max_expires": SECOND * 60,
        "max_bytes": 900,
        "inactive_threshold": 60 * SECOND,
        "num_replicas": 1,
        "mem_storage": True,
        "metadata": {"a": "b"},
    }
    push = {
        "deliver_subject": "to",
        "deliver_group": "g",
        "flow_control": True,
        "idle_heartbeat": SECOND,
        "rate_limit_bps": 99999,
        "filter_subject": "s.1",
        "deliver_policy": "by_start_time",
        "opt_start_time": "2020-01-01T00:00:00Z",
    }
    later, before = "2099-01-01T00:00:00Z", "2001-01-01T00:00:00Z"

    return [
        Asked("CONSUMER.NAMES of nothing", "CONSUMER.NAMES.S"),
        Asked("CONSUMER.LIST of nothing", "CONSUMER.LIST.S"),
        Asked("CONSUMER.CREATE", "CONSUMER.CREATE.S.pull", consumer("pull")),
        Asked("CONSUMER.CREATE again", "CONSUMER.CREATE.S.pull", consumer("pull")),
        Asked(
            "CONSUMER.CREATE of a new one only",
            "CONSUMER.CREATE.S.pull",
            {**consumer("pull", max_deliver=5), "action": "create"},
        ),
        Asked("CONSUMER.CREATE of an old one only", "CONSUMER.CREATE.S.new", {**consumer("new"), "action": "update"}),
        Asked("CONSUMER.CREATE without a name", "CONSUMER.CREATE.S", consumer("")),
        Asked("CONSUMER.CREATE with all options", "CONSUMER.CREATE.S.every", consumer("every", **every)),
        Asked("CONSUMER.CREATE of a push consumer", "CONSUMER.CREATE.S.push.s.1", consumer("push", **push)),
        Asked("CONSUMER.CREATE of a paused one", "CONSUMER.CREATE.S.later", consumer("later", pause_until=later)),
        Asked(
            "CONSUMER.CREATE with a group",
            "CONSUMER.CREATE.S.pin",
            consumer("pin", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=SECOND),
        ),
        Asked("CONSUMER.CREATE for no stream", "CONSUMER.CREATE.X.pull", {**consumer("pull"), "stream_name": "X"}),
        Asked(
            "CONSUMER.CREATE of what cannot be", "CONSUMER.CREATE.S.bad", consumer("bad", max_deliver=1, backoff=[1, 2])
        ),
        Asked("CONSUMER.DURABLE.CREATE", "CONSUMER.DURABLE.CREATE.S.old", consumer("old")),
        Asked("CONSUMER.DURABLE.CREATE without a name", "CONSUMER.DURABLE.CREATE.S.old", consumer("")),
        Asked("", "", act=Conversation.settle),
        Asked("CONSUMER.INFO before a delivery", "CONSUMER.INFO.S.pull"),
        Asked("", "", act=Conversation.fetch),
        Asked("CONSUMER.INFO", "CONSUMER.INFO.S.pull"),
        Asked("CONSUMER.INFO of a push consumer", "CONSUMER.INFO.S.push"),
        Asked("CONSUMER.INFO with all options", "CONSUMER.INFO.S.every"),
        Asked("CONSUMER.INFO of a paused one", "CONSUMER.INFO.S.later"),
        Asked("CONSUMER.INFO with a group", "CONSUMER.INFO.S.pin"),
        Asked("CONSUMER.INFO of none", "CONSUMER.INFO.S.none"),
        Asked("CONSUMER.INFO of no stream", "CONSUMER.INFO.X.none"),
        Asked("CONSUMER.NAMES", "CONSUMER.NAMES.S"),
        Asked("CONSUMER.NAMES of no stream", "CONSUMER.NAMES.X"),
        Asked("CONSUMER.LIST", "CONSUMER.LIST.S"),
        Asked("CONSUMER.LIST of no stream", "CONSUMER.LIST.X"),
        Asked("CONSUMER.PAUSE", "CONSUMER.PAUSE.S.old", {"pause_until": later}),
        Asked("CONSUMER.PAUSE that ends it", "CONSUMER.PAUSE.S.old"),
        Asked("CONSUMER.PAUSE of the past", "CONSUMER.PAUSE.S.old", {"pause_until": before}),
        Asked("CONSUMER.PAUSE of none", "CONSUMER.PAUSE.S.none", {"pause_until": later}),
        Asked("CONSUMER.RESET", "CONSUMER.RESET.S.pull"),
        Asked("CONSUMER.RESET to a sequence", "CONSUMER.RESET.S.pull", {"seq": 3}),
        Asked("CONSUMER.UNPIN", "CONSUMER.UNPIN.S.pin", {"group": "g"}),
        Asked("CONSUMER.UNPIN of another group", "CONSUMER.UNPIN.S.pin", {"group": "h"}),
        Asked("CONSUMER.UNPIN of none", "CONSUMER.UNPIN.S.none", {"group": "g"}),
        Asked("CONSUMER.LEADER.STEPDOWN", "CONSUMER.LEADER.STEPDOWN.S.old"),
        Asked("CONSUMER.LEADER.STEPDOWN of none", "CONSUMER.LEADER.STEPDOWN.S.none"),
        Asked("", "", act=Conversation.settle),
        Asked("CONSUMER.PEER.REMOVE of none", "CONSUMER.PEER.REMOVE.S.old", {"peer": "nobody"}),
        Asked("CONSUMER.PEER.EVACUATE", "CONSUMER.PEER.EVACUATE.S.old", {"peer": "n1"}),
        Asked("CONSUMER.PEER.EVACUATE of no consumer", "CONSUMER.PEER.EVACUATE.S.none", {"peer": "n1"}),
        Asked("CONSUMER.DELETE", "CONSUMER.DELETE.S.old"),
        Asked("CONSUMER.DELETE again", "CONSUMER.DELETE.S.old"),
        Asked("CONSUMER.DELETE with a body", "CONSUMER.DELETE.S.pull", {"a": 1}),
    ]


def _of_the_rest(replicas: int) -> list[Asked]:
    stream = {"name": "S", "subjects": ["s.>"], "num_replicas": replicas}
    return [
        Asked("STREAM.SNAPSHOT", "STREAM.SNAPSHOT.S", {"deliver_subject": "archive", "chunk_size": 4096}),
        Asked("STREAM.SNAPSHOT of no stream", "STREAM.SNAPSHOT.X", {"deliver_subject": "archive"}),
        Asked("STREAM.SNAPSHOT without a subject", "STREAM.SNAPSHOT.S"),
        Asked("STREAM.RESTORE of what is there", "STREAM.RESTORE.S", {"config": stream, "state": {"messages": 0}}),
        Asked("STREAM.RESTORE", "STREAM.RESTORE.R", {"config": {"name": "R", "subjects": ["r"]}, "state": {}}),
        Asked("STREAM.LEADER.STEPDOWN", "STREAM.LEADER.STEPDOWN.S"),
        Asked("STREAM.LEADER.STEPDOWN of no stream", "STREAM.LEADER.STEPDOWN.X"),
        Asked("", "", act=Conversation.settle),
        Asked("STREAM.PEER.REMOVE of none", "STREAM.PEER.REMOVE.S", {"peer": "nobody"}),
        Asked("STREAM.PEER.REMOVE of no stream", "STREAM.PEER.REMOVE.X", {"peer": "n1"}),
        Asked("STREAM.PEER.EVACUATE of none", "STREAM.PEER.EVACUATE.S", {"peer": "nobody"}),
        Asked("STREAM.CANCEL_MOVE", "STREAM.CANCEL_MOVE.S"),
        Asked("STREAM.PURGE", "STREAM.PURGE.S", {"keep": 1}),
        Asked("STREAM.PURGE of no stream", "STREAM.PURGE.X"),
        Asked("STREAM.DELETE with a body", "STREAM.DELETE.S", {"a": 1}),
        Asked("STREAM.DELETE", "STREAM.DELETE.F"),
        Asked("STREAM.DELETE again", "STREAM.DELETE.F"),
        Asked("META.LEADER.STEPDOWN to nobody", "META.LEADER.STEPDOWN", {"placement": {"preferred": "nobody"}}, True),
        Asked("META.RESCUE", "META.RESCUE", {"quorum_needed": 1}, True),
        Asked("SERVER.REMOVE of none", "SERVER.REMOVE", {"peer": "nobody"}, True),
        Asked("SERVER.REMOVE without a name", "SERVER.REMOVE", {}, True),
        Asked("ACCOUNT.PURGE", "ACCOUNT.PURGE.A", None, True),
        Asked("META.LEADER.STEPDOWN", "META.LEADER.STEPDOWN", None, True),
    ]


def shape(value: Any, key: str = "") -> Shape:
    if isinstance(value, dict):
        if key in MAPS or key == "subjects":
            return "map"
        fields = [(name, inner) for name, inner in value.items() if name not in MOMENTARY]
        return [[name, inner if _is_code(key, name) else shape(inner, name)] for name, inner in fields]
    if isinstance(value, list):
        found: Shape = None
        for element in value:
            found = shape(element) if found is None else together(found, shape(element))
        return {"of": found}
    return "null" if value is None else type(value).__name__


def _is_code(key: str, name: str) -> bool:
    return key == "error" and name in ("code", "err_code")


def together(one: Shape, other: Shape) -> Shape:
    """The union of two runs: a key that one of them lacks is there sometimes."""
    if isinstance(one, list) and isinstance(other, list):
        ones, others = dict(map(tuple, one)), dict(map(tuple, other))
        names = [_plain(name) for name in _merged(list(ones), list(others))]
        found = []
        for name in dict.fromkeys(names):
            in_one, in_other = _of(ones, name), _of(others, name)
            if in_one is None or in_other is None:
                found.append([name + "?", in_one or in_other])
            else:
                mark = "?" if name + "?" in ones or name + "?" in others else ""
                found.append([name + mark, together(in_one, in_other)])
        return found
    if isinstance(one, dict) and isinstance(other, dict):
        if one["of"] is None or other["of"] is None:
            return {"of": one["of"] or other["of"]}
        return {"of": together(one["of"], other["of"])}
    return one if one == other else f"{one} or {other}"


def _merged(one: list[str], other: list[str]) -> list[str]:
    """All of both, each in its order as far as they agree."""
    found, rest = [], [_plain(name) for name in other]
    for name in map(_plain, one):
        if name in rest:
            at = rest.index(name)
            found += rest[:at]
            rest = rest[at + 1 :]
        found.append(name)
    return found + rest


def _plain(name: str) -> str:
    return name.removesuffix("?")


def _of(shapes: dict[str, Shape], name: str) -> Shape:
    return shapes.get(name, shapes.get(name + "?"))


def differences(wanted: Shape, found: Shape, at: str = "") -> list[str]:
    """Differences of an answer from the recorded ones, each as "place: what"."""
    if isinstance(wanted, list) and isinstance(found, list):
        wants, has = dict(map(tuple, wanted)), dict(map(tuple, found))
        told = [f"{at}.{name}: missing" for name in wants if not name.endswith("?") and _of(has, name) is None]
        told += [f"{at}.{_plain(name)}: not there" for name in has if _of(wants, _plain(name)) is None]
        common = [name for name in map(_plain, has) if _of(wants, name) is not None]
        if common != [name for name in map(_plain, wants) if name in common]:
            told.append(f"{at}: order")
        for name in common:
            told += differences(_of(wants, name), _of(has, name), f"{at}.{name}")
        return told
    if isinstance(wanted, dict) and isinstance(found, dict):
        if wanted["of"] is None or found["of"] is None:
            return []
        return differences(wanted["of"], found["of"], f"{at}[]")
    return [] if wanted == found or str(found) in str(wanted).split(" or ") else [f"{at}: {found} for {wanted}"]


async def converse(server: str, size: int) -> dict[str, Shape]:
    """Shapes of all answers, by name."""
    async with ProcessCluster(size, server, config=CONFIG) as cluster:
        node = cluster[0]
        async with await node.connect() as client, await node.connect(user="s", **{"pass": "s"}) as system:
            conversation = Conversation(client, system, cluster)
            found: dict[str, Shape] = {}
            for asked in requests(size):
                if asked.act is not None:
                    await asked.act(conversation)
                else:
                    found[asked.name] = await conversation.ask(asked)
            return found


async def record(known: dict[str, dict[str, Shape]], runs: int) -> dict[str, dict[str, Shape]]:
    """`known` taken together with so many more runs."""
    everything: dict[str, dict[str, Shape]] = {}
    for size in (1, 3):
        kept = dict(known.get(str(size), {}))
        for _ in range(runs):
            for name, found in (await converse("nats-server", size)).items():
                kept[name] = together(kept[name], found) if name in kept else found
        everything[str(size)] = kept
    return everything


def recorded() -> dict[str, dict[str, Shape]]:
    found: dict[str, dict[str, Shape]] = json.loads(RECORD.read_text())
    return found


def main() -> None:
    parts = []
    more = "--add" in sys.argv
    for size, answers in asyncio.run(record(recorded() if more else {}, 1 if more else RUNS)).items():
        rows = [f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in answers.items()]
        parts.append(f'"{size}": {{\n' + ",\n".join(rows) + "\n}")
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
