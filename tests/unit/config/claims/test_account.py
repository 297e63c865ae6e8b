"""Claims of account JWTs: limits, exports and imports, tiers, and what is wrong with them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import (
    CHUNKED,
    AccountJetStreamOptions,
    AccountOptions,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.config.claims.account import decode_account, verified_account
from jetcluster.config.claims.operator import decode_operator
from jetcluster.config.claims.token import ClaimsError
from jetcluster.config.claims.user import decode_user
from jetcluster.config.import_rules import MAX_SEARCHED_ACCOUNTS, settle
from tests.signer import Key, Operator
from tests.unit.config.jwts import ACCOUNT, NOON, OPERATOR, OTHER, account_with, activation


def problems(**claims: Any) -> list[str]:
    limits = claims.pop("limits", None)
    return list(decode_account(account_with(limits, **claims).jwt).problems())


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"mem_storage": 0, "disk_storage": 0, "streams": 5}, None),
        ({"disk_storage": -1}, AccountJetStreamOptions(max_memory=0, max_store=-1)),
        (
            {
                "mem_storage": 10, "disk_storage": 20, "streams": 3, "consumer": 4, "max_ack_pending": 5,
                "mem_max_stream_bytes": 6, "disk_max_stream_bytes": 7, "max_bytes_required": True,
            },
            AccountJetStreamOptions(10, 20, 3, 4, 5, 6, 7, max_bytes_required=True),
        ),
        ({"tiered_limits": {"R1": {"mem_storage": 0}}}, None),
        (
            {"disk_storage": 9, "tiered_limits": {"R3": {"disk_storage": 10, "streams": 2}}},
            AccountJetStreamOptions(
                max_memory=0, max_store=30, max_streams=2,
                tiers={"R3": AccountJetStreamOptions(max_memory=0, max_store=10, max_streams=2)},
            ),
        ),
        (
            {
                "tiered_limits": {
                    "R1": {"disk_storage": 5, "streams": 1, "consumer": 7},
                    "R3": {"disk_storage": 10, "streams": 2, "mem_storage": -1},
                }
            },
            AccountJetStreamOptions(
                max_memory=-1, max_store=35, max_streams=3, max_consumers=-1,
                tiers={
                    "R1": AccountJetStreamOptions(max_memory=0, max_store=5, max_streams=1, max_consumers=7),
                    "R3": AccountJetStreamOptions(max_memory=-1, max_store=10, max_streams=2),
                },
            ),
        ),
    ],
)  # fmt: skip
def test_jetstream_limits(limits: dict[str, Any], expected: AccountJetStreamOptions | None) -> None:
    assert decode_account(account_with(limits).jwt).options().jetstream == expected


def test_an_account_becomes_what_a_block_of_the_configuration_would() -> None:
    claims = {
        "default_permissions": {"pub": {"deny": ["x"]}},
        "exports": [
            {
                "name": "e", "subject": "s.*.>", "type": "service", "token_req": True, "response_type": "Chunked",
                "response_threshold": 5_000_000_000, "account_token_position": 2, "allow_trace": True,
                "service_latency": {"sampling": "headers", "results": "lat"},
            },
            {"subject": "t", "type": "stream"},
        ],
        "imports": [
            {"subject": "a.*", "account": OTHER.public, "type": "stream", "local_subject": "b.$1", "name": "i"},
            {"subject": "here", "account": OTHER.public, "type": "service", "to": "there", "share": True},
            {"subject": "c", "account": OTHER.public, "type": "stream", "to": "pre"},
        ],
        "mappings": {"m": [{"subject": "n", "weight": 30}, {"subject": "o", "cluster": "C"}]},
    }  # fmt: skip
    options = decode_account(account_with({"conn": 1, "leaf": 2, "subs": 3, "payload": 4}, **claims).jwt).options()
    assert options.name == ACCOUNT.public
    limits = options.limits
    assert (limits.max_connections, limits.max_leafnodes, limits.max_subscriptions, limits.max_payload) == (1, 2, 3, 4)
    assert options.default_permissions is not None
    assert options.default_permissions.publish.deny == ["x"]
    assert options.exports == [
        ExportOptions(
            "service", "s.*.>", token_required=True, account_token_position=2, response_type=CHUNKED,
            response_threshold=5.0, latency=LatencyOptions("lat", 0), allow_trace=True, name="e",
        ),
        ExportOptions("stream", "t"),
    ]  # fmt: skip
    assert options.imports == [
        ImportOptions("stream", OTHER.public, "a.*", "b.$1", name="i"),
        ImportOptions("service", OTHER.public, "there", "here", share=True),
        ImportOptions("stream", OTHER.public, "c", "pre.c", prefix="pre"),
    ]
    assert options.mappings == [MappingOptions("m", [MappingDestination("n", 30), MappingDestination("o", 100, "C")])]


def imported(**more: Any) -> dict[str, Any]:
    return {"imports": [{"subject": "a", "account": OTHER.public, "type": "stream", **more}]}


def exported(**more: Any) -> dict[str, Any]:
    return {"exports": [{"subject": "a.*", "type": "service", **more}]}


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (imported(), ""),
        (imported(type="x"), 'invalid import type: "x"'),
        (imported(account=""), "account to import from is not specified"),
        (imported(subject="a..b"), "consecutive"),
        (imported(subject=""), "subject cannot be empty"),
        (imported(share=True), "only valid for services"),
        (imported(type="service", allow_trace=True), "AllowTrace only valid for stream import"),
        (imported(local_subject="b", to="c"), "Local Subject replaces To"),
        (imported(subject="a.*", local_subject="b.$2"), "that do not exist"),
        (imported(subject="a.*", local_subject="b"), "enough * or reference wildcards"),
        (imported(subject="a.>", local_subject="b"), "need to end or not end in >"),
        (imported(token=activation(OTHER.key)), ""),
        (imported(token=activation(Key("account"), issuer_account=OTHER.public)), ""),  # who knows: the exporter does
        (imported(token=activation(Key("account"))), "activation token doesn't match account for import"),
        (imported(token=activation(OTHER.key, to=OTHER.public)), "doesn't match account it is being included in"),
        (imported(token=activation(OTHER.key, kind="service")), "mismatch between token import type"),
        (imported(token=activation(OTHER.key, subject="b")), "doesn't match import"),
        (imported(token="eyJ.x.y"), "invalid activation token"),
        ({"imports": [imported(type="service")["imports"][0]] * 2}, "overlapping subject namespace"),
        (exported(), ""),
        (exported(type="stream", response_type="Stream"), "invalid response type for stream"),
        (exported(response_type="Foo"), "invalid response type for service"),
        (exported(response_threshold=-1), "negative response threshold"),
        (exported(type="stream", response_threshold=1_000_000_000), "response threshold only valid for services"),
        (exported(service_latency={"sampling": 101, "results": "r"}), "between 1-100"),
        (exported(service_latency={"sampling": 1, "results": "r.*"}), "can not contain wildcards"),
        (exported(type="stream", service_latency={"sampling": 1, "results": "r"}), "only permitted for services"),
        (exported(account_token_position=1), "matches 'a' but must match a *"),
        (exported(account_token_position=3), "exceeds length"),
        (exported(subject="a", account_token_position=1), "can only be used with wildcard subjects"),
        ({"exports": [*exported()["exports"], *exported(subject="a.b")["exports"]]}, "already exports"),
        ({"limits": {"imports": 0}, **imported()}, "more imports than allowed"),
        ({"limits": {"exports": 0}, **exported()}, "more exports than allowed"),
        ({"limits": {"exports": 5, "wildcards": False}, **exported()}, "wildcard exports that are not allowed"),
        ({"mappings": {"a": [{"subject": "b", "weight": 60}, {"subject": "c", "weight": 50}]}}, "exceeds 100%"),
        ({"mappings": {"a": [{"subject": "b", "weight": 60}, {"subject": "c", "weight": 50, "cluster": "C"}]}}, ""),
        ({"signing_keys": ["x"]}, "is not a valid account signing key"),
        ({"signing_keys": [{"kind": "user_scope", "key": "x"}]}, "is not an account public key"),
        ({"default_permissions": {"pub": {"allow": ["a b"]}}}, "not allowed to contain queue"),
        ({"default_permissions": {"sub": {"allow": ["a b c"]}}}, "too many spaces"),
        ({"authorization": {"auth_users": ["x"]}}, "is not a valid user public key"),
        ({"authorization": {"allowed_accounts": ["*"]}}, "cannot have accounts without users"),
        ({"cluster_traffic": "mine"}, "unknown cluster traffic option"),
        ({"trace": {"dest": "a.*"}}, "not a valid publish subject"),
        ({"limits": {"tiered_limits": {"": {"mem_storage": 1}}}}, "blank"),
    ],
)
def test_what_is_wrong_with_an_account(claims: dict[str, Any], expected: str) -> None:
    found = problems(**claims)
    if expected:
        assert any(expected in problem for problem in found), found
    else:
        assert found == []


def test_verified_accounts() -> None:
    keys = [OPERATOR.key.public]
    assert verified_account(ACCOUNT.public, ACCOUNT.jwt, keys, NOON).token.name == "A"
    late = account_with()
    late.fields = {"exp": int(NOON) - 1}
    for key, text, issuers in (
        (OTHER.public, ACCOUNT.jwt, keys),
        (ACCOUNT.public, ACCOUNT.jwt, [Operator().key.public]),
        (ACCOUNT.public, late.jwt, keys),
        (ACCOUNT.public, account_with(**imported(type="x")).jwt, keys),
    ):
        with pytest.raises(ClaimsError, match="account validation failed"):
            verified_account(key, text, issuers, NOON)


def test_a_chain_of_imports_that_is_too_long_is_left_out() -> None:
    accounts = [f"A{at}" for at in range(MAX_SEARCHED_ACCOUNTS + 5)]
    options = {
        name: AccountOptions(
            name,
            exports=[ExportOptions("stream", "x")],
            imports=[ImportOptions("stream", accounts[at - 1], "x")] if at else [],
        )
        for at, name in enumerate(accounts)
    }
    settled = settle(options)
    assert {why.rpartition(": ")[2] for _, why in settled.problems} == {"search cycle depth exhausted"}
    assert len(settled.imports) >= MAX_SEARCHED_ACCOUNTS - 1


_NAMES = """
    imports exports limits signing_keys revocations default_permissions mappings authorization trace cluster_traffic
    type version subject account token to local_subject share allow_trace name token_req response_type tags start end
    response_threshold service_latency account_token_position sampling results subs data payload conn leaf wildcards
    tiered_limits R1 mem_storage disk_storage pub sub allow deny resp max ttl src times times_location xkey dest
    bearer_token proxy_required allowed_connection_types issuer_account kind key template weight cluster auth_users
    allowed_accounts strict_signing_key_usage assert_server_version system_account account_server_url
"""
NAMES = st.sampled_from(_NAMES.split())
TEXTS = st.sampled_from(
    ["stream", "service", "user_scope", "a.*", "a.>", "$1", ">", "\ud800", "é", "", " ", "x" * 300, "a.$" + "9" * 5000]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.just(ACCOUNT.public), st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(NAMES, TEXTS), inner, max_size=6)),
    max_leaves=25,
)


TIER_NAMES = st.one_of(
    st.sampled_from(["R1", "R3", "R", "R0", "R01", "R²", "R٣", "r3", "R-1", "R1 ", "R9" * 50, "R" + "9" * 5000]),
    st.text(max_size=5),
    st.integers(min_value=0).map(lambda number: f"R{number}"),
)
TIER_LIMITS = st.fixed_dictionaries({"disk_storage": st.integers(-1, 2**62), "mem_storage": st.integers(-1, 2**62)})


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TIER_NAMES, TIER_LIMITS, min_size=1, max_size=4))
def test_tiers_may_have_any_name(tiers: dict[str, dict[str, int]]) -> None:
    """Tiers that no stream can be in count once, like one of a single replica."""
    claims = decode_account(account_with({"tiered_limits": tiers}).jwt)
    list(claims.problems())
    found = claims.options().jetstream
    limited = {name: tier for name, tier in tiers.items() if any(tier.values())}
    assert (found is None) == (not limited)
    if found is None:
        return
    assert set(found.tiers or ()) == set(limited)
    times = {name: int(name[1:]) if re.fullmatch("R[1-9][0-9]?", name) else 1 for name in limited}
    stores = [tier["disk_storage"] * times[name] for name, tier in limited.items()]
    assert found.max_store == (-1 if any(tier["disk_storage"] == -1 for tier in limited.values()) else sum(stores))


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_whatever_a_trusted_signer_writes_is_an_answer_or_a_refusal(body: dict[str, Any]) -> None:
    """And what is believed can be used: encoded, as subjects are, and put to its rules."""
    for signer, kind in ((OPERATOR.key, "account"), (ACCOUNT.key, "user"), (OPERATOR.key, "operator")):
        claims = {**body, "type": kind, "version": 2}
        text = signer.token(ACCOUNT.public, "A", claims)
        try:
            if kind == "account":
                found = decode_account(text)
                assert all(isinstance(problem, str) for problem in found.problems())
                json.dumps(asdict(found.options()), ensure_ascii=False).encode()
            elif kind == "user":
                rights = decode_user(text).rights
                list(rights.problems())
                UserPermissions(rights.permissions)
            else:
                strict = body.get("strict_signing_key_usage") is True  # then its own key signs no accounts
                assert strict or ACCOUNT.public in decode_operator(text).keys
        except ClaimsError:
            pass
