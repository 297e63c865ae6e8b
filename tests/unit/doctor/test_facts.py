"""Facts travel between servers of different versions."""

from __future__ import annotations

import json

import pytest

from jetcluster.doctor.facts import Absent, Certificate, ConfigFacts, Remote, ServerFacts
from tests.unit.doctor.cases import server


def test_there_and_back() -> None:
    facts = server(
        troubles=(("loop", "it stood still", 3.0),), absent=(Absent("n2", 1.5),), certificates=(Certificate("c", 9.0),),
        leaf_remotes=(Remote("A", "hub:1", connected=True),), config=ConfigFacts(inert=("gateway",), sync_interval=2.0),
    )  # fmt: skip
    assert ServerFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_members_of_another_version() -> None:
    told = {"name": "n1", "of_tomorrow": 1, "config": {"users": False, "of_tomorrow": 2}}
    facts = ServerFacts.from_dict(told)
    assert (facts.name, facts.config.users, facts.members) == ("n1", False, ())
    with pytest.raises(TypeError):
        ServerFacts.from_dict({"version": "0.1"})
