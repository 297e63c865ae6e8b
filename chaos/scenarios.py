"""Scenarios by name: which nemeses strike, in turn and in random order, while all workloads run."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.nemeses import NEMESES


@dataclass(frozen=True)
class Scenario:
    name: str
    nemeses: tuple[str, ...]
    about: str
    nodes: int = 3
    storage: str = "file"
    """Options of all streams."""
    config: str = ""
    """Added to each node's configuration file."""
    relaxed: float = 0.0
    """Seconds of acks that a loss of power may take, by `config` (chaos/relaxed.py)."""
    workloads: tuple[str, ...] = ()
    """Only these, where others prove nothing; else the usual ones."""
    besides: tuple[str, ...] = ()
    """Workloads that run as well."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(NEMESES[name].needs for name in self.nemeses))


_PROCESS = ("kill-leader", "kill-one", "kill-majority", "kill-all")
_PAUSE = ("pause-leader", "pause-some")
_CUT = ("partition-halves", "partition-ring", "partition-one-way")
_LINKS = ("slow-links", "narrow-links", "flaky-links")
_SICK = ("hung-journal", "failing-store", "failing-journal")
_UNCLEAN = (*_SICK, "clock-hours", "clock-hours-restart", "cut-journal")
_DAMAGE = ("bit-flip", "truncated-file")

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("calm", (), "no fault: what the machine alone does"),
        Scenario("kill", _PROCESS, "SIGKILL to the leader, one, a majority, all"),
        Scenario("pause", _PAUSE, "SIGSTOP to the leader, to some"),
        Scenario("halves", ("partition-halves",), "minority against majority"),
        Scenario("ring", ("partition-ring",), "five nodes that each see two", nodes=5),
        Scenario("one-way", ("partition-one-way",), "links that are deaf in one direction"),
        Scenario("links", _LINKS, "slow, narrow and flaky links"),
        Scenario("clock", ("clock-jump",), "wall clocks jump by up to 55 s"),
        Scenario("clock-hours", ("clock-hours", "clock-hours-restart"),
                 "one wall clock is two hours off, while lifetimes, schedules and message ids count",
                 besides=("times",)),
        Scenario("disk-full", ("disk-full",), "one node's disk is full"),
        Scenario("sick-disk", _SICK, "the journal hangs, the journal or the data store answers EIO"),
        Scenario("damage", _DAMAGE, "flipped bits and cut files on one node at a time"),
        Scenario("rot-two", ("rot-two",), "data files of two of three nodes rot, at once or in turn"),
        Scenario("cut-journal", ("cut-journal",), "a journal loses its end beside a replica that lags"),
        Scenario("power", ("power-cut",), "all nodes die and lose what was not synced"),
        Scenario("power-relaxed", ("power-cut-flushed",), "the same with a sync_interval: what is older is kept",
                 config='jetstream { sync_interval: "500ms" }\n', relaxed=0.5, workloads=("queue", "batches")),
        Scenario("memory", ("kill-whole",), "memory streams: a leader or another node dies, one at a time",
                 storage="memory"),
        Scenario("membership", ("stepdown",), "leaders step down"),
        Scenario("flood", ("flood",), "50 connections publish without waiting"),
        Scenario("descriptors", ("no-descriptors",), "idle connections take all file descriptors of a node"),
        Scenario("members", ("peer-remove", "server-remove", "kill-leader"), "nodes come and go", nodes=4),
        Scenario("scale", ("stepdown", "scale", "peer-remove"), "streams go to five replicas and back", nodes=5),
        Scenario("balance", ("kill-while-balancing",), "a server gets its share, and others die meanwhile", nodes=4),
        Scenario("unclean", (*_UNCLEAN, "rot-two", "kill-leader", "pause-leader"), "what is no clean crash, in turn"),
        Scenario("freshness", ("kill-leader", "kill-one", "pause-leader", "pause-some", *_CUT, "stepdown"),
                 "reads of every strength while servers die, stand still and are cut off", nodes=5,
                 workloads=("freshness",)),
        Scenario("freshness-edge", ("cut-edge", "cut-edge", "kill-leader", "pause-leader", "stepdown"),
                 "the same also at a mirror behind a leaf link, whose origin is at times unreachable",
                 workloads=("edge",)),
        Scenario("order-and-letters", ("kill-leader", "kill-one", "kill-all", *_PAUSE, *_CUT, "stepdown"),
                 "order per key and dead letters while owners die, stand still and are cut off",
                 workloads=("keys", "letters")),
        Scenario("mix", (*_PROCESS, *_PAUSE, *_CUT, *_LINKS, "stepdown"), "processes, links and leaders in turn"),
        Scenario(
            "all",
            (*_PROCESS, *_PAUSE, *_CUT, *_LINKS, *_DAMAGE, *_UNCLEAN, "clock-jump", "disk-full", "power-cut",
             "stepdown", "server-remove"),
            "everything that three nodes can suffer, in turn",
        ),
        Scenario("short", ("kill-leader", "pause-leader", "partition-halves", "power-cut", "stepdown"),
                 "one of each, for CI", besides=("freshness",)),
        Scenario("containers", ("kill-leader", "kill-one", "kill-all", "pause-leader", "pause-some", "disconnect",
                                "stepdown"), "what can be done to the compose cluster"),
    )
}  # fmt: skip

DEFAULT = (
    "kill", "pause", "halves", "one-way", "power", "power-relaxed", "memory", "sick-disk", "clock-hours", "cut-journal",
    "rot-two", "flood", "descriptors", "freshness", "freshness-edge", "order-and-letters",
    "mix",
)  # fmt: skip
"""The scenarios of `make chaos`, which divides its time among them."""
EVERY_LOCAL = tuple(name for name in SCENARIOS if name not in ("containers", "short"))
