"""Faults by name."""

from chaos.nemeses import (
    balancing,
    clock,
    containers,
    cut_journal,
    damage,
    descriptors,
    disk,
    load,
    membership,
    network,
    process,
    rot,
    sick_disk,
)
from chaos.nemeses.base import Nemesis, Trouble

NEMESES: dict[str, Nemesis] = {
    nemesis.name: nemesis
    for room in (
        process,
        network,
        disk,
        sick_disk,
        damage,
        rot,
        cut_journal,
        clock,
        membership,
        balancing,
        load,
        descriptors,
        containers,
    )
    for nemesis in room.NEMESES
}

__all__ = ["NEMESES", "Nemesis", "Trouble"]
