"""Messages forwarded over a leaf link, and the mark of those that arrived on one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jetcluster.protocol.interest import FORWARDED
from jetcluster.server.accounts.subscription import ORIGIN, is_marked, passes, take_origin


def test_what_is_told_on_a_link() -> None:
    hub: Any = SimpleNamespace(spoke=False, remote_cluster=b"X")
    same: Any = SimpleNamespace(spoke=False, remote_cluster=b"X")
    other: Any = SimpleNamespace(spoke=False, remote_cluster=b"Y")
    spoke: Any = SimpleNamespace(spoke=True, remote_cluster=b"X")
    up: Any = SimpleNamespace(spoke=True, remote_cluster=b"Z")
    node: Any = SimpleNamespace()
    leaves = [hub, same, other, spoke, up]
    told = {
        name: [link for link in leaves if passes(source, link, leaves)]
        for name, source in {"clients": None, "hub": hub, "spoke": spoke, "node": node}.items()
    }
    assert told["clients"] == leaves
    assert told["hub"] == [other, spoke, up], "not to the cluster that has it already"
    assert told["spoke"] == [hub, same, other], "no node of a leaf is a way between two hubs"
    assert told["node"] == [hub, same, other], "each node of a leaf has its own link"


def test_the_origin_of_a_message_goes_before_its_queues() -> None:
    assert take_origin([ORIGIN + b"X", b"q"]) == (b"X", [b"q"])
    assert take_origin([b"q", ORIGIN + b"X"]) == (b"", [b"q", ORIGIN + b"X"])
    assert take_origin([]) == (b"", [])
    assert is_marked(ORIGIN + b"X") and is_marked(FORWARDED) and not is_marked(b"q")
