"""Small things that all pages and all `$SYS` answers render alike, the `server` object among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jetcluster.monitor.view import JETSTREAM_FLAG, ServerBlock
from testkit.twins.time import ManualTime


def block(**more: Any) -> ServerBlock:
    options = {
        "host": "h", "is_clustered": False, "cluster_name": "C", "domain": "", "server_tags": [],
        "server_metadata": {}, "feature_flags": {}, "jetstream": SimpleNamespace(enabled=False),
    }  # fmt: skip
    node: Any = SimpleNamespace(
        options=SimpleNamespace(**{**options, **more}),
        server=SimpleNamespace(name="n", server_id="ID"),
        clock=ManualTime(),
    )
    return ServerBlock(node)


def test_each_time_it_says_something_has_the_next_number() -> None:
    one = block()
    assert [one.make()["seq"] for _ in range(3)] == [1, 2, 3]
    assert block().make()["seq"] == 1


def test_only_what_there_is_is_shown() -> None:
    plain = block().make()
    assert not {"cluster", "domain", "tags", "metadata"} & plain.keys()
    assert (plain["name"], plain["host"], plain["id"]) == ("n", "h", "ID")
    assert (plain["jetstream"], plain["flags"]) == (False, 0)
    full = block(
        is_clustered=True, domain="d", server_tags=["t"], server_metadata={"k": "v"},
        jetstream=SimpleNamespace(enabled=True),
    ).make()  # fmt: skip
    assert (full["cluster"], full["domain"], full["tags"], full["metadata"]) == ("C", "d", ["t"], {"k": "v"})
    assert (full["jetstream"], full["flags"]) == (True, JETSTREAM_FLAG)
