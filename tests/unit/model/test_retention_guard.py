"""The guard in a stream's configuration, and in its metadata for clients that drop fields they do not know."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.limits import AccountLimits
from jetcluster.model.retention_guard import GuardRules, rules_of
from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import check_config

HOUR = 3_600_000_000_000
PREFIX = "jetcluster.retention_guard."


def wire(**config: Any) -> dict[str, Any]:
    return StreamConfig.from_fields({"name": "S", "subjects": ["s"], **config}).normalised().to_wire()


def guarded(metadata: dict[str, str] | None = None, /, **guard: Any) -> dict[str, Any]:
    return wire(retention_guard=guard, metadata=metadata or {}, max_bytes=1000, max_age=HOUR)


def test_a_stream_has_no_guard_unless_it_asks_for_one() -> None:
    assert "retention_guard" not in wire()
    assert rules_of(wire()) is None
    check_config(wire())


def test_the_field_is_in_the_metadata_too_so_that_a_stock_client_keeps_it() -> None:
    config = guarded(consumer="archive", max_bytes=2000, max_age=3 * HOUR, discard="old")
    check_config(config)
    assert rules_of(config) == GuardRules("archive", 2000, 3 * HOUR, refuses=False)
    metadata = {key.removeprefix(PREFIX): text for key, text in config["metadata"].items() if key.startswith(PREFIX)}
    assert metadata == {"consumer": "archive", "max_bytes": "2000", "max_age": "3h0m0s", "discard": "old"}
    edited = {key: value for key, value in config.items() if key != "retention_guard"}
    assert wire(**edited) == config, "as a client sends it back that knows no retention_guard"
    assert wire(**config) == config


def test_the_metadata_alone_is_enough() -> None:
    config = wire(metadata={f"{PREFIX}consumer": "archive", f"{PREFIX}max_age": "36h"})
    check_config(config)
    assert config["retention_guard"] == {"consumer": "archive", "max_bytes": 0, "max_age": 36 * HOUR, "discard": "new"}


def test_metadata_that_an_older_version_stored_is_no_guard() -> None:
    assert rules_of({"metadata": {f"{PREFIX}consumer": "archive", f"{PREFIX}max_age": "36h"}}) is None


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        ({"max_bytes": 2000}, "requires a consumer"),
        ({"consumer": "a b", "max_bytes": 2000}, "not the name of a consumer"),
        ({"consumer": "a"}, "requires max_bytes or max_age"),
        ({"consumer": "a", "max_bytes": -1}, "can not be negative"),
        ({"consumer": "a", "max_age": -1}, "can not be negative"),
        ({"consumer": "a", "max_bytes": 1000}, "max_bytes must be larger"),
        ({"consumer": "a", "max_age": HOUR}, "max_age must be larger"),
    ],
)
def test_a_guard_that_makes_no_sense_is_refused(guard: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        check_config(guarded(**guard))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"consumer": "b", "max_bytes": "2000"}, "differs from"),
        ({"consumer": "a", "max_bytes": "2 GB"}, "must be a number of bytes"),
        ({"consumer": "a", "max_bytes": "2000", "discard": "none"}, "must be a number of bytes"),
        ({"consumer": "a", "max_bytes": "2000", "policy": "x"}, "has no policy"),
    ],
)
def test_metadata_that_says_something_else_is_refused(metadata: dict[str, str], text: str) -> None:
    with pytest.raises(ApiError, match=text):
        check_config(guarded({PREFIX + key: value for key, value in metadata.items()}, consumer="a", max_bytes=2000))
    alone = {PREFIX + key: value for key, value in metadata.items()}
    if "differs" not in text:
        with pytest.raises(ApiError, match=text):
            check_config(wire(metadata=alone))


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_only_limits_are_guarded(retention: str) -> None:
    with pytest.raises(ApiError, match="requires limits retention"):
        check_config(wire(retention=retention, retention_guard={"consumer": "a", "max_bytes": 1}))


def test_a_guard_may_not_hold_more_than_a_stream_of_the_account_may_have() -> None:
    config = guarded(consumer="a", max_bytes=5000)
    check_config(config, AccountLimits(storage_max_stream_bytes=5000))
    with pytest.raises(ApiError) as refused:
        check_config(config, AccountLimits(storage_max_stream_bytes=4999))
    assert refused.value.err_code == 10122
