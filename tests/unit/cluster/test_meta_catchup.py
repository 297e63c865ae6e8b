"""A node that starts, and the streams that it does not know yet (cluster/meta_catchup.py)."""

from __future__ import annotations

import pytest

from jetcluster.cluster.meta_catchup import MetaCatchUp
from tests.unit.cluster.nodes import Cluster
from tests.unit.cluster.virtual_loop import virtual_time


@virtual_time
async def test_a_meta_index_that_is_never_reached_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a leader whose log others did not have, or that said something wrong: the node would never serve."""
    async with Cluster() as cluster:
        await cluster.create("S")
        answers = [10**12]
        ask = MetaCatchUp.ask

        async def commit_of_meta(self: MetaCatchUp) -> int | None:
            return answers.pop() if answers else await ask(self)

        cluster.crash("A")
        monkeypatch.setattr(MetaCatchUp, "ask", commit_of_meta)
        node = cluster.restart("A")
        await cluster.until(lambda: node.js.context.meta_current, what="the meta state is current")
        assert not answers
