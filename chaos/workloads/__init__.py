"""Workloads of clients while things break. Each has a stream of its own, named as the workload, and is told apart by
that name in the history."""

from chaos.workloads.base import Workload
from chaos.workloads.batches import Batches
from chaos.workloads.consumers import Consumers
from chaos.workloads.edge import EdgeFreshness
from chaos.workloads.freshness import Freshness
from chaos.workloads.keys import Keys
from chaos.workloads.letters import Letters
from chaos.workloads.mirrors import Mirrors
from chaos.workloads.queue import Queue
from chaos.workloads.register import Register
from chaos.workloads.times import Times

WORKLOADS: dict[str, type[Workload]] = {
    kind.name: kind
    for kind in (Queue, Register, Freshness, EdgeFreshness, Batches, Consumers, Keys, Letters, Mirrors, Times)
}
"""In this order: a mirror is created after its origin."""
USUAL = ("queue", "register", "batches", "consumers", "mirrors")
"""Workloads of every scenario that names no others."""

__all__ = ["USUAL", "WORKLOADS", "Workload"]
