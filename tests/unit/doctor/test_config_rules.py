"""Configurations; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.config_rules import look_at_account, look_at_config
from jetcluster.doctor.facts import AccountFacts
from tests.unit.doctor.cases import config


def test_a_good_configuration_has_none() -> None:
    assert list(look_at_config("n1", config())) == []


def test_open_doors_are_one_finding_each() -> None:
    facts = config(users=False, tls=False, routes_secret=False, routes_tls=False, trusted_network=True)
    assert [one.code for one in look_at_config("n1", facts)] == ["JC502", "JC501"]


def test_an_account_by_its_limits() -> None:
    found = list(look_at_account(AccountFacts("n1", "A", storage=95, max_storage=100, streams=10, max_streams=10)))
    assert [one.figures["limit_name"] for one in found] == ["max_file", "max_streams"]
    assert found[1].what == "Account A uses 10 of max_streams 10"
