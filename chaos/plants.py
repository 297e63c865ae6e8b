"""Bugs that are planted into the servers of a run: each must be found by its scenario, or the run proves nothing.

    python -m chaos --plant clock-trusted --scenario clock-hours --seconds 20

A plant is a few lines that replace parts of the server when a process starts (a `sitecustomize` before its path); the
server has no hook for it. `replace` ends the process when what it replaces is not there any more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_HEAD = """
import os, sys
def replace(owner, name, new):
    if not hasattr(owner, name):
        sys.stderr.write(f"{owner} has no {name}: the plant is out of date")
        sys.stderr.flush()
        os._exit(3)
    setattr(owner, name, new)
def plant(code):
    try:
        exec(code, globals())
    except Exception as error:  # Python starts without a sitecustomize that raises
        sys.stderr.write(f"{error!r}: the plant is out of date")
        sys.stderr.flush()
        os._exit(3)
"""


@dataclass(frozen=True)
class Plant:
    name: str
    scenario: str
    finds: frozenset[str]
    """Kinds of findings, of which at least one must come up."""
    about: str
    code: str

    def environment(self, folder: Path, top: Path) -> dict[str, str]:
        """The environment that a server is to be started with; `top`: where the program is."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sitecustomize.py").write_text(_HEAD + f"plant({self.code!r})\n")
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), str(top), before]))}


PLANTS = {
    plant.name: plant
    for plant in (
        Plant(
            "clock-trusted", "clock-hours", frozenset({"expired", "kept", "lost", "fired early", "not fired"}),
            "nodes stamp with their own wall clock and lead with it",
            """
from jetcluster.health.cluster_clock import ClusterClock
replace(ClusterClock, "time_ns", lambda self: self._system.time_ns())
replace(ClusterClock, "trouble", property(lambda self: ""))
""",
        ),
        Plant(
            "no-way-given", "sick-disk", frozenset({"outage", "kept leading"}),
            "a node that is not well leads on",
            """
from jetcluster.health.node_health import NodeHealth
replace(NodeHealth, "look", lambda self: self.time.settle())
""",
        ),
        Plant(
            "cut-is-torn", "cut-journal", frozenset({"lost", "minority ack", "unhealed", "moved"}),
            "a journal that was cut short passes for one with a torn last write",
            """
from jetcluster.raft.journal.recovery import _Scan
replace(_Scan, "_vouched", lambda self, damage: None)
""",
        ),
        Plant(
            "no-window", "clock-hours", frozenset({"duplicated"}),
            "message ids are not remembered",
            """
from jetcluster.stream.apply.dedupe import DedupeWindow
replace(DedupeWindow, "seq_of", lambda self, msg_id: None)
""",
        ),
        Plant(
            "mirror-unconfirmed", "scale", frozenset({"own write"}),
            "a mirror answers for its upstream what it has, whatever was acked there",
            """
from jetcluster.replica.mirror_host import MirroredStream
replace(MirroredStream, "confirms", lambda self, origin, payload: False)
""",
        ),
        Plant(
            "reads-unproven", "freshness", frozenset({"stale"}),
            "a linearizable read is answered with what a replica has",
            """
from jetcluster.replica.reads.demands import Demands
replace(Demands, "_prove", lambda self, request, go_on: go_on())
""",
        ),
        Plant(
            "edge-unproven", "freshness-edge", frozenset({"stale"}),
            "a mirror takes what it has for what its origin elsewhere has, without a question",
            """
from jetcluster.mirror.ports import LastSequence
from jetcluster.replica.mirror_host import MirroredStream
async def elsewhere(self):
    return LastSequence(self._replica.store.last_seq, True)
replace(MirroredStream, "_elsewhere", elsewhere)
""",
        ),
        Plant(
            "keys-roam", "order-and-letters", frozenset({"shared key"}),
            "what a member may get goes to whoever asks",
            """
from jetcluster.consumer.owner.member_dispatch import MemberDispatch
replace(MemberDispatch, "_line", lambda self, number: self._queue.line)
""",
        ),
        Plant(
            "silent-damage", "rot-two", frozenset({"unannounced", "unhealed"}),
            "damaged records are kept to oneself, and stay",
            """
from jetcluster.replica.repair import Repair
from jetcluster.cluster.store_care import StoreCare
replace(Repair, "_tell", lambda self, cause: None)
replace(StoreCare, "tick", lambda self: None)
""",
        ),
    )
}  # fmt: skip
