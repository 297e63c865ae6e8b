"""Account B sees, changes and learns nothing of account A, by any subject (isolation_cases.py), on one node."""

from __future__ import annotations

import json
from pathlib import Path

from jetcluster.api import endpoints
from tests.unit.node.isolation_cases import (
    API,
    CONFIG,
    EMPTY,
    HIDDEN,
    NOBODY,
    OTHERS,
    OWN,
    SILENT,
    STREAM,
    ask,
    come,
    set_up,
    state_of,
    verdict,
)  # fmt: skip
from tests.unit.node.test_websocket import node_of
from tests.unit.server.wire import messages


def test_every_endpoint_has_a_row() -> None:
    assert set(API) == {endpoint.name for endpoint in endpoints.ALL}


async def test_by_every_subject_of_the_api(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONFIG.format(store=tmp_path / "store")) as node:
        port = node.server.port
        a, b = await come(port, "hidden-user"), await come(port, "b")
        listener = await come(port, "b")
        await listener.ask("SUB > 2")
        await set_up(a)
        assert messages(await listener.settle()) == []
        before = await state_of(a)
        heard = await come(port, "hidden-user")
        await heard.ask("SUB > 2")
        for name, row in API.items():
            for prefix in ("$JS.API.", "$JS.hub.API."):
                subject = prefix + name + ("." + row.args if row.args else "")
                patience = 0.05 if row.expected == SILENT else 3.0
                answer = await ask(b, subject, row.body, patience)
                assert HIDDEN not in answer, (subject, answer)
                found = verdict(answer)
                if row.expected == "error":
                    assert found not in (OWN, EMPTY), (subject, answer)
                elif row.expected == SILENT:
                    assert found in (SILENT, NOBODY, 10003), (subject, answer)
                elif prefix == "$JS.API." or row.expected != OWN:
                    assert found == row.expected, (subject, answer)
                if row.expected == OWN:
                    await ask(b, "$JS.API.STREAM.DELETE.M")
                told = messages(await heard.settle())
                assert told == [], (subject, told)
            assert await state_of(a) == before, name
            await heard.settle()  # what A itself has asked
        # B's own stream of the same name, and all of that again: it is B's that is meant.
        mine = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
        assert verdict(await ask(b, "$JS.API.STREAM.CREATE.S", mine)) == OWN
        await ask(b, "s.1", "of B")
        await heard.settle()
        for name, row in API.items():
            subject = f"$JS.API.{name}" + ("." + row.args if row.args else "")
            answer = await ask(b, subject, row.body, 0.05 if row.expected == SILENT else 3.0)
            assert HIDDEN not in answer, (subject, answer)
        assert messages(await heard.settle()) == []
        assert await state_of(a) == before
        # The twin: A gets what B does not.
        assert HIDDEN in await ask(a, "$JS.API.STREAM.INFO.S")
        assert json.loads(await ask(a, "$JS.API.STREAM.DELETE.S"))["success"] is True
        assert STREAM["name"] == "S"


async def test_by_every_other_subject(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONFIG.format(store=tmp_path / "store")) as node:
        port = node.server.port
        a, b = await come(port, "hidden-user"), await come(port, "b")
        await set_up(a)
        for subject in ("$SRV.>", "_INBOX.a.>", "$JS.EVENT.>", "$SYS.>"):
            assert messages(await a.ask(f"SUB {subject} {subject}")) == []
        before = await state_of(a)
        await a.settle()
        for subject, body, expected in OTHERS:
            target = subject.replace("{id}", node.server.server_id)
            answer = await ask(b, target, body)
            assert HIDDEN not in answer, (target, answer)
            assert b'"A"' not in answer, (target, answer)
            if expected:
                assert verdict(answer) == expected, (target, answer)
            assert messages(await a.settle()) == [], target
        assert await state_of(a) == before
        # Twins: A is answered where B is not.
        assert (await ask(a, "$JS.API.DIRECT.GET.S", {"seq": 1})).endswith(HIDDEN)
        assert (await ask(a, "$JS.API.DIRECT.GET.KV_b.$KV.b.k")).endswith(HIDDEN)
        connz = json.loads(await ask(a, "$SYS.REQ.SERVER.PING.CONNZ", {"auth": True}))
        assert {one["account"] for one in connz["data"]["connections"]} == {"A"}
        acked = await state_of(a)
        a.publish("$JS.ACK.S.C.1.1.1.1700000000000000000.0", b"+ACK")
        await a.settle()
        assert await state_of(a) != acked
