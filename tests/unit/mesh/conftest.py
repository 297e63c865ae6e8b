"""Fixtures of the tests of meshes."""

from __future__ import annotations

from tests.unit.mesh.rig import start

__all__ = ["start"]
