"""Accounts across nodes: B tries everything of tests/unit/node/isolation_cases.py at every node of a cluster, and the
replicated streams and consumers of A stay as they are, unseen."""

from __future__ import annotations

import pytest

from testkit.harness import ProcessCluster
from tests.unit.node.isolation_cases import API, CONFIG, HIDDEN, OTHERS, OWN, SILENT, ask, come, set_up, state_of
from tests.unit.server.wire import messages

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires"), pytest.mark.thorough]


async def test_by_every_subject_at_every_node() -> None:
    async with ProcessCluster(3, config="no_auth_user: b\n" + CONFIG.format(store="$STORE")) as cluster:
        a = await come(cluster[0].port, "hidden-user")
        watching = [await come(node.port, "b") for node in cluster.nodes]
        for wire in watching:
            await wire.ask("SUB > 2")
        await set_up(a, replicas=3)
        before = await state_of(a)
        heard = await come(cluster[1].port, "hidden-user")
        for subject in ("s.>", "hidden.>", "$KV.>", "$SRV.>", "_INBOX.a.>", "$JS.EVENT.METRIC.>"):
            await heard.ask(f"SUB {subject} {subject}")
        for wire in watching:
            assert messages(await wire.ask("UNSUB 2")) == []  # nothing of what A has done
        for node in cluster.nodes:
            b = await come(node.port, "b")
            for name, row in API.items():
                if row.expected != OWN:
                    subject = f"$JS.API.{name}" + ("." + row.args if row.args else "")
                    answer = await ask(b, subject, row.body, 0.02 if row.expected == SILENT else 2.0)
                    assert HIDDEN not in answer, (node.name, subject, answer)
                    assert b'"success":true' not in answer, (node.name, subject, answer)
            for subject, body, _ in OTHERS:
                answer = await ask(b, subject.replace("{id}", "n1"), body, 2.0)
                assert HIDDEN not in answer, (node.name, subject, answer)
                assert b'"A"' not in answer, (node.name, subject, answer)
        assert messages(await heard.settle()) == []
        assert await state_of(a) == before
