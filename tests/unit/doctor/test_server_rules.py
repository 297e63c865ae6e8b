"""The arithmetic in the reasons; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.server_rules import TROUBLES, look_at_server
from jetcluster.health.node_health import Aspect
from tests.unit.doctor.cases import server


def test_every_aspect_of_health_has_a_finding() -> None:
    assert set(TROUBLES) == {aspect.value for aspect in Aspect}


def test_what_reserved_storage_leaves() -> None:
    (found,) = look_at_server(server(reserved_storage=9 << 30, max_storage=10 << 30))
    assert found.what == "max_bytes of the streams on n1 reserve 9.0 GiB of 10.0 GiB of storage"
    assert found.why.startswith("10.0 GiB less 9.0 GiB leave 1.0 GiB.")
    assert found.figures == {"reserved": 9 << 30, "limit": 10 << 30, "left": 1 << 30}


def test_a_trouble_tells_since_when() -> None:
    (found,) = look_at_server(server(troubles=(("loop", "it stood still", 300.0),)))
    assert (found.code, found.what) == ("JC108", "n1: it stood still")
    assert found.why.startswith("For 5 min: it stood still.")


def test_a_well_server_has_none() -> None:
    assert list(look_at_server(server())) == []
