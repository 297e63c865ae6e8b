"""Ways to messages that are not a publish or a subscription, as docs/security/other-doors.md lists them: each is tried
by somebody who may not use it, and by somebody who may."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jetcluster.node.node import Node
from tests.unit.node.test_direct_get_permissions import ask, come, refused
from tests.unit.node.test_websocket import node_of
from tests.unit.server.wire import Wire

CONFIG = """
jetstream {{ store_dir: "{store}", domain: hub }}
accounts {{
  A {{ jetstream: enabled
    exports: [ {{ service: "o.in" }}, {{ stream: "pub.>" }} ]
    users: [
    {{ user: admin, password: p }}
    {{ user: nobj, password: p, permissions {{ publish: {{ deny: ["$OBJ.>"] }} }} }}
    {{ user: maker, password: p, permissions {{ subscribe: "_INBOX.>",
       publish: ["$JS.API.CONSUMER.CREATE.O.>", "$JS.API.STREAM.SNAPSHOT.O", "$KV.mine.>"] }} }}
    {{ user: mine, password: p, permissions {{ subscribe: ["_INBOX.>", "o.mine.>"], publish: ["o.mine.>"] }} }}
  ] }}
  B {{ jetstream: enabled, users: [ {{ user: guest, password: p }} ]
    imports: [ {{ service: {{ account: A, subject: "o.in" }} }}, {{ stream: {{ account: A, subject: "pub.>" }} }} ] }}
}}
"""
FLAGS = {"allow_msg_schedules": True, "allow_rollup_hdrs": True, "allow_direct": True, "storage": "memory"}


@asynccontextmanager
async def stream(folder: Path) -> AsyncIterator[Node]:
    async with node_of(folder, CONFIG.format(store=folder / "store")) as node:
        admin = await come(node, "admin")
        for name, subjects in (("O", ["o.>"]), ("OBJ_b", ["$OBJ.b.>"]), ("KV_mine", ["$KV.mine.>"])):
            config = {"name": name, "subjects": subjects, **(FLAGS if name == "O" else {"storage": "memory"})}
            assert "error" not in json.loads(await ask(admin, f"$JS.API.STREAM.CREATE.{name}", config))
        await ask(admin, "o.secret", "hidden")
        yield node


def code(answer: str) -> int:
    error = json.loads(answer).get("error")
    return error["err_code"] if error else 0


async def test_a_bucket_by_every_name(tmp_path: Path) -> None:
    async with stream(tmp_path) as node:
        admin = await come(node, "admin")
        for subject in ("$OBJ.b", "$JS.API.$OBJ.b", "$JS.hub.API.$OBJ.b"):
            other = await come(node, "nobj")
            answer = await ask(other, subject, {"op": "list"})
            assert answer in (refused(subject), refused("$OBJ.b")), subject
            assert json.loads(await ask(admin, subject, {"op": "list"}))["objects"] == []
        assert json.loads(await ask(await come(node, "nobj"), "$JS.API.STREAM.INFO.O"))["state"]["messages"] == 1


async def test_deliveries_go_to_nobody_elses_bucket(tmp_path: Path) -> None:
    """The server publishes them in the place of who has asked."""
    async with stream(tmp_path) as node:
        maker = await come(node, "maker")
        for target, found in (("$KV.other.k", 10112), ("$JS.API.STREAM.DELETE.O", 10112), ("$KV.mine.k", 0)):
            config = {"name": "c", "deliver_subject": target, "ack_policy": "none"}
            body = {"stream_name": "O", "config": config}
            assert code(await ask(maker, "$JS.API.CONSUMER.CREATE.O.c", body)) == found, target
        for target, found in (("$KV.other.k", 10015), ("$KV.mine.k", 0), ("_INBOX.maker.7", 0)):
            answer = await ask(maker, "$JS.API.STREAM.SNAPSHOT.O", {"deliver_subject": target})
            assert code(answer) == found, target


async def ask_fields(wire: Wire, subject: str, *fields: str) -> str:
    return await ask(wire, subject, "x", fields=fields)


def scheduled(target: str, *more: str) -> list[str]:
    return ["Nats-Schedule: @every 1h", f"Nats-Schedule-Target: {target}", *more]


async def test_who_schedules_what(tmp_path: Path) -> None:
    async with stream(tmp_path) as node:
        admin, mine, guest = [await come(node, user) for user in ("admin", "mine", "guest")]
        assert code(await ask_fields(admin, "o.sched", *scheduled("o.target"))) == 0
        end = ("Nats-Schedule-Next: purge", "Nats-Scheduler: o.sched")
        violation = 'Permissions Violation for {} "{}"'
        for fields, answer in (
            (scheduled("o.secret"), violation.format("Publish to", "o.secret")),
            (scheduled("o.mine.t", "Nats-Schedule-Source: o.secret"), violation.format("Subscription to", "o.secret")),
            (end, violation.format("Publish to", "o.sched")),
        ):
            assert await ask_fields(mine, "o.mine.x", *fields) == answer
        # A request of another account schedules and ends nothing, and neither does what a stream of theirs imports.
        for fields in (scheduled("o.secret"), scheduled("o.leak", "Nats-Schedule-Source: o.secret"), end):
            assert code(await ask_fields(guest, "o.in", *fields)) == 10212
        config = {"name": "P", "subjects": ["pub.>", "own.>"], **FLAGS}
        assert code(await ask(guest, "$JS.API.STREAM.CREATE.P", config)) == 0
        for subject, fields in (("pub.x", scheduled("own.secret")), ("pub.y", ["A: 1"])):
            await ask(admin, subject, "x", "_INBOX.none", fields)
        assert json.loads(await ask(guest, "$JS.API.STREAM.INFO.P"))["state"]["messages"] == 1
        assert (await ask(admin, "$JS.API.DIRECT.GET.O.o.sched")).endswith("x")
        # The twins: each is allowed to who may use the subjects.
        assert code(await ask_fields(mine, "o.mine.x", *scheduled("o.mine.t", "Nats-Schedule-Source: o.mine.s"))) == 0
        assert code(await ask_fields(mine, "o.mine.y", end[0], "Nats-Scheduler: o.mine.x")) == 0
        assert code(await ask_fields(guest, "o.in", "A: 1")) == 0
        assert code(await ask_fields(guest, "own.x", *scheduled("own.t"))) == 0
        assert code(await ask_fields(admin, "o.x", *end)) == 0
        assert (await ask(admin, "$JS.API.DIRECT.GET.O.o.sched")).startswith("NATS/1.0 404")
