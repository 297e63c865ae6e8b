"""A rig with order per key."""

from __future__ import annotations

from typing import Any

from tests.unit.consumer.rig import Rig

ONE = {"max_ack_pending_per_subject": 1}


def rig(**config: Any) -> Rig:
    return Rig(**{**ONE, **config})


def update(rig: Rig, **config: Any) -> None:
    assert isinstance(rig.node.create(**config), int)
    rig.owner.configured()
    rig.woken = True
    rig.settle()
