"""A mirror that has begun."""

from __future__ import annotations

from typing import Any

from tests.unit.mirror.rig import Rig

MIRROR: dict[str, Any] = {"mirror": {"name": "UP"}}


def begun(**config: Any) -> Rig:
    rig = Rig(**(config or MIRROR))
    rig.links.begin()
    return rig
