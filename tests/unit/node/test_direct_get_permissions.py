"""A user who may read some keys of a bucket by the subject-appended Direct Get reads those and no others, whatever way
is tried; and nobody has the server itself ask for what he may not. Each attempt has a twin that succeeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jetcluster.node.node import Node
from tests.unit.node.test_websocket import node_of
from tests.unit.server.wire import Wire, errors, messages

GET = "$JS.API.DIRECT.GET.KV_b"
CREATE = "$JS.API.CONSUMER.CREATE.KV_b"
CONFIG = """
jetstream {{ store_dir: "{store}", domain: hub }}
accounts {{
  A {{ jetstream: enabled, users: [
    {{ user: admin, password: p }}
    {{ user: reader, password: p, permissions {{ subscribe: "_INBOX.>",
       publish: ["$JS.API.DIRECT.GET.KV_b.$KV.b.public.>"] }} }}
    {{ user: watcher, password: p, permissions {{ subscribe: "_INBOX.>",
       publish: ["$JS.API.CONSUMER.CREATE.KV_b.*.$KV.b.public.>", "$JS.API.CONSUMER.MSG.NEXT.KV_b.*"] }} }}
    {{ user: nearly, password: p, permissions {{
       publish: {{ deny: ["$JS.API.DIRECT.GET.KV_b", "$JS.API.DIRECT.GET.KV_b.$KV.b.secret.>"] }} }} }}
  ] }}
}}
"""


@asynccontextmanager
async def bucket(folder: Path, config: str = CONFIG) -> AsyncIterator[Node]:
    async with node_of(folder, config.format(store=folder / "store")) as node:
        admin = await come(node, "admin")
        config = {
            "name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1, "allow_direct": True,
            "allow_rollup_hdrs": True, "storage": "memory",
        }  # fmt: skip
        assert "error" not in json.loads(await ask(admin, "$JS.API.STREAM.CREATE.KV_b", config))
        for key, value in (("public.x", "shown"), ("secret.x", "hidden")):
            await ask(admin, f"$KV.b.{key}", value)
        yield node


async def come(node: Node, user: str) -> Wire:
    wire = await Wire.open(node.server.port)
    assert errors(await wire.log_in(user=user, **{"pass": "p"})) == []
    assert errors(await wire.ask(f"SUB _INBOX.{user}.> 1")) == []
    wire.inbox = f"_INBOX.{user}.1"
    return wire


async def ask(wire: Wire, subject: str, body: Any = "", reply: str = "", fields: Sequence[str] = ()) -> str:
    """The answer, or the -ERR; "" for neither. `fields`: lines of a header block."""
    payload = (body if isinstance(body, str) else json.dumps(body)).encode()
    if fields:
        block = "\r\n".join(["NATS/1.0", *fields, "\r\n"]).encode()
        size = f"{len(block)} {len(block) + len(payload)}"
        wire.send(f"HPUB {subject} {reply or wire.inbox} {size}", block + payload)
    else:
        wire.publish(subject, payload, reply or wire.inbox)
    frames = await wire.settle()
    until = asyncio.get_running_loop().time() + 3
    while not errors(frames) and not messages(frames) and asyncio.get_running_loop().time() < until:
        if reply:
            break
        await asyncio.sleep(0.01)
        frames = await wire.settle()
    found = errors(frames)
    return found[0] if found else messages(frames)[0].payload.decode() if messages(frames) else ""


def refused(subject: str) -> str:
    """The name with the domain is judged, and shown, as the one without."""
    return f'Permissions Violation for Publish to "{subject.replace("$JS.hub.API.", "$JS.API.")}"'


READER: list[tuple[str, Any]] = [
    (GET, {"last_by_subj": "$KV.b.secret.x"}),
    (GET, {"multi_last": ["$KV.b.>"]}),
    (GET, {"seq": 1, "batch": 100}),
    (GET, {"next_by_subj": "$KV.b.secret.>", "seq": 1}),
    (GET, {"last_by_subj": "$KV.b.public.x"}),
    (GET, ""),
    (f"{GET}.$KV.b.secret.x", ""),
    (f"{GET}.$KV.b.>", ""),
    (f"{GET}.$KV.b.*.x", ""),
    (f"{GET}.>", ""),
    ("$JS.API.DIRECT.GET.LAST.KV_b.$KV.b.secret.x", ""),
    ("$JS.API.DIRECT.PEER.KV_b.n1", {"last_by_subj": "$KV.b.secret.x"}),
    ("$JS.API.DIRECT.PEER.KV_b.n1.$KV.b.public.x", ""),
    ("$JS.hub.API.DIRECT.GET.KV_b.$KV.b.secret.x", ""),
    ("$JS.hub.API.DIRECT.GET.KV_b", {"seq": 2}),
    ("$JS.API.STREAM.MSG.GET.KV_b", {"last_by_subj": "$KV.b.secret.x"}),
    ("$JS.API.STREAM.INFO.KV_b", {"subjects_filter": ">"}),
    (f"{CREATE}.c.$KV.b.public.>", {"stream_name": "KV_b", "config": {"name": "c", "filter_subject": "$KV.b.>"}}),
    (f"{CREATE}.c", {"stream_name": "KV_b", "config": {"name": "c", "deliver_subject": "_INBOX.reader.1"}}),
    ("$JS.API.CONSUMER.DURABLE.CREATE.KV_b.c", {"stream_name": "KV_b", "config": {"durable_name": "c"}}),
    ("$JS.API.CONSUMER.MSG.NEXT.KV_b.c", ""),
    ("$JS.API.STREAM.CREATE.M", {"name": "M", "mirror": {"name": "KV_b"}, "allow_direct": True}),
    ("$JS.API.STREAM.CREATE.M", {"name": "M", "sources": [{"name": "KV_b"}]}),
    ("$JS.API.STREAM.UPDATE.KV_b", {"name": "KV_b", "republish": {"src": ">", "dest": "_INBOX.reader.1.>"}}),
    ("$JS.API.STREAM.SNAPSHOT.KV_b", {"deliver_subject": "_INBOX.reader.1"}),
    ("$OBJ.b", {"op": "list"}),
    ("$KV.b.public.x", "mine"),
]


async def test_ways_to_other_keys(tmp_path: Path) -> None:
    async with bucket(tmp_path) as node:
        reader, admin = await come(node, "reader"), await come(node, "admin")
        for subject, body in READER:
            assert await ask(reader, subject, body) == refused(subject)
        # A body can be sent to what is allowed; it does not make it more.
        for body in (
            {"multi_last": ["$KV.b.>"]},
            {"last_by_subj": "$KV.b.secret.x"},
            {"seq": 2},
            {"no_hdr": 1, "seq": 2},
        ):
            answer = await ask(reader, f"{GET}.$KV.b.public.x", body)
            assert "NATS/1.0 408" in answer, (body, answer)
        for subject in (f"{GET}.$KV.b.public.>", f"{GET}.$KV.b.public.*", f"{GET}.$KV.b.public.x.y"):
            assert "hidden" not in await ask(reader, subject)
        # The twins: this one is allowed, and each of those works for who may do it.
        assert (await ask(reader, f"{GET}.$KV.b.public.x")).endswith("shown")
        for subject, body in ((GET, {"last_by_subj": "$KV.b.secret.x"}), (f"{GET}.$KV.b.secret.x", "")):
            assert (await ask(admin, subject, body)).endswith("hidden")
        assert (await ask(admin, "$JS.API.DIRECT.PEER.KV_b.n1", {"seq": 2})).endswith("hidden")
        assert (await ask(admin, "$JS.API.DIRECT.GET.LAST.KV_b.$KV.b.secret.x")).endswith("hidden")
        assert (await ask(admin, "$JS.hub.API.DIRECT.GET.KV_b.$KV.b.secret.x")).endswith("hidden")
        assert "data" in json.loads(await ask(admin, "$JS.API.STREAM.MSG.GET.KV_b", {"seq": 2}))["message"]


async def test_a_wildcard_is_no_key(tmp_path: Path) -> None:
    """`>` as plain text is one token, which `*` takes; the server takes it for all keys below."""
    one = CONFIG.replace("KV_b.$KV.b.public.>", "KV_b.$KV.b.*")
    async with bucket(tmp_path, one) as node:
        reader, watcher, admin = await come(node, "reader"), await come(node, "watcher"), await come(node, "admin")
        await ask(admin, "$KV.b.top", "shown")
        await ask(admin, "$KV.b.secret.x", "hidden")
        for wire, subject in ((reader, f"{GET}.$KV.b.>"), (watcher, f"{CREATE}.c.$KV.b.>")):
            config = {"name": "c", "filter_subject": "$KV.b.>"} if wire is watcher else ""
            body = {"stream_name": "KV_b", "config": config} if config else ""
            assert await ask(wire, subject, body) == refused(subject)
        for key in ("top", "*"):
            assert (await ask(reader, f"{GET}.$KV.b.{key}")).endswith("shown")
        assert (await ask(admin, f"{GET}.$KV.b.>")).endswith("hidden")
        nearly = await come(node, "nearly")
        assert await ask(nearly, f"{GET}.$KV.b.>") == refused(f"{GET}.$KV.b.>")


async def test_filters_of_consumers(tmp_path: Path) -> None:
    """A client that may create consumers with one filter in the subject gets no other one by the body."""
    bodies: list[tuple[dict[str, Any], int]] = [
        ({"filter_subject": "$KV.b.secret.>"}, 10131),
        ({"filter_subject": "$KV.b.>"}, 10131),
        ({"filter_subjects": ["$KV.b.public.>", "$KV.b.secret.>"]}, 10131),
        ({"filter_subjects": ["$KV.b.secret.>"]}, 10131),
    ]
    async with bucket(tmp_path) as node:
        watcher = await come(node, "watcher")
        subject = f"{CREATE}.c.$KV.b.public.>"
        for config, _ in bodies:
            body = {"stream_name": "KV_b", "config": {"name": "c", "ack_policy": "none", **config}}
            answer = json.loads(await ask(watcher, subject, body))
            assert answer.get("error") is not None, (config, answer)
        for stream in ("OTHER", ""):
            body = {"stream_name": stream, "config": {"name": "c", "filter_subject": "$KV.b.public.>"}}
            assert "error" in json.loads(await ask(watcher, subject, body))
        other = f"{CREATE}.c.$KV.b.secret.>"
        assert await ask(watcher, other, {}) == refused(other)
        config = {"name": "c", "filter_subject": "$KV.b.public.>", "ack_policy": "none"}
        made = json.loads(await ask(watcher, subject, {"stream_name": "KV_b", "config": config}))
        assert made["num_pending"] == 1
        assert (await ask(watcher, "$JS.API.CONSUMER.MSG.NEXT.KV_b.c", {"batch": 1, "no_wait": True})).endswith("shown")


async def test_what_is_denied_is_denied_by_every_name(tmp_path: Path) -> None:
    async with bucket(tmp_path) as node:
        nearly = await come(node, "nearly")
        for subject in (
            GET, f"{GET}.$KV.b.secret.x", "$JS.API.DIRECT.GET.LAST.KV_b.$KV.b.secret.x", "$JS.API.DIRECT.PEER.KV_b.n1",
            "$JS.hub.API.DIRECT.GET.KV_b", "$JS.hub.API.DIRECT.GET.LAST.KV_b.$KV.b.secret.x",
        ):  # fmt: skip
            assert await ask(nearly, subject, {"seq": 2}) == refused(subject)
        assert (await ask(nearly, f"{GET}.$KV.b.public.x")).endswith("shown")
        assert (await ask(nearly, "$JS.API.DIRECT.GET.LAST.KV_b.$KV.b.public.x")).endswith("shown")


SHARED = """
jetstream {{ store_dir: "{store}" }}
accounts {{
  A {{ jetstream: enabled, users: [ {{ user: admin, password: p }} ]
    exports: [ {{ service: "$JS.API.DIRECT.GET.KV_b.$KV.b.public.>", accounts: [B] }}
      {{ service: "$JS.API.DIRECT.GET.KV_b.$KV.b.*" }} ] }}
  B {{ jetstream: enabled, users: [ {{ user: guest, password: p }} ]
    imports: [ {{ service: {{ account: A, subject: "$JS.API.DIRECT.GET.KV_b.$KV.b.public.>" }}, to: "keys.>" }}
      {{ service: {{ account: A, subject: "$JS.API.DIRECT.GET.KV_b.$KV.b.*" }}, to: "top.*" }} ] }}
}}
"""


async def test_what_another_account_may_read(tmp_path: Path) -> None:
    """An export of some keys is one of those keys: its importer gets no others, nor anything else of the stream."""
    async with bucket(tmp_path, SHARED) as node:
        guest = await come(node, "guest")
        assert (await ask(guest, "keys.x")).endswith("shown")
        for subject, body in (
            ("keys.x.y", ""), ("keys.x", {"last_by_subj": "$KV.b.secret.x"}), ("keys.x", {"seq": 2}),
            ("keys.x", {"multi_last": [">"]}), (GET, {"seq": 2}), (f"{GET}.$KV.b.secret.x", ""),
            (f"{GET}.$KV.b.public.x", ""), ("$JS.API.DIRECT.PEER.KV_b.n1", {"seq": 2}),
            ("$JS.API.DIRECT.GET.LAST.KV_b.$KV.b.secret.x", ""),
        ):  # fmt: skip
            answer = await ask(guest, subject, body)
            assert answer.startswith(("NATS/1.0 404", "NATS/1.0 408", "NATS/1.0 503")), (subject, body, answer)
        admin = await come(node, "admin")
        await ask(admin, "$KV.b.one", "shown")
        await ask(admin, "$KV.b.secret.x", "hidden")
        assert (await ask(guest, "top.one")).endswith("shown")
        assert (await ask(guest, "top.*")).endswith("shown")
        assert (await ask(guest, "top.>")).startswith("NATS/1.0 503")
        for reply in ("$JS.API.STREAM.DELETE.KV_b", "$KV.b.public.x"):
            await ask(guest, "keys.x", reply=reply)
        await asyncio.sleep(0.1)
        assert json.loads(await ask(admin, "$JS.API.STREAM.INFO.KV_b"))["state"]["last_seq"] == 4


async def test_the_server_asks_nothing_in_somebody_elses_place(tmp_path: Path) -> None:
    """Answers, deliveries and copies that are sent to the API's own subjects are no requests."""
    delete = "$JS.API.STREAM.DELETE.KV_b"
    async with bucket(tmp_path) as node:
        reader, admin = await come(node, "reader"), await come(node, "admin")
        for reply in (
            delete,
            "$JS.hub.API.STREAM.DELETE.KV_b",
            "$KV.b.public.x",
            "$OBJ.b",
            GET,
            "$JS.ACK.KV_b.c.1.1.1.1.0",
        ):
            answer = await ask(reader, f"{GET}.$KV.b.public.x", reply=reply)
            assert answer == f'Permissions Violation for Publish with Reply of "{reply}"'
        # Who may do all may use such a reply; it does nothing.
        await ask(admin, "$KV.b.public.empty")
        for subject, body in ((f"{GET}.$KV.b.public.empty", {"no_hdr": True}), ("$JS.API.INFO", "")):
            await ask(admin, subject, body, reply=delete)
        config = {"name": "P", "deliver_subject": delete, "ack_policy": "none", "filter_subject": "$KV.b.public.>"}
        body = {"stream_name": "KV_b", "config": config}
        assert "error" not in json.loads(await ask(admin, f"{CREATE}.P.$KV.b.public.>", body))
        source = {"name": "S", "subjects": ["s"], "storage": "memory", "republish": {"src": "s", "dest": delete}}
        assert "error" not in json.loads(await ask(admin, "$JS.API.STREAM.CREATE.S", source))
        await ask(admin, "s", "x")
        await asyncio.sleep(0.1)
        state = json.loads(await ask(admin, "$JS.API.STREAM.INFO.KV_b"))["state"]
        assert state["messages"] == 3
        # The twin: the same request, asked by a client.
        assert json.loads(await ask(admin, delete))["success"] is True
