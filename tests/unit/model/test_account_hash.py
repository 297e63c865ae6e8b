"""Functions of account names in subjects: what they become, and where they mean nothing."""

from __future__ import annotations

import pytest

from jetcluster.model.account_hash import AccountNames, account_hash
from jetcluster.model.transforms import TransformError

A, B = account_hash("A"), account_hash("B")


def test_the_hash_is_that_of_nats_server() -> None:
    assert account_hash("A") == "NUmM6cRx"  # as in its replies of version 2


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("a.{{account-hash()}}.>", f"a.{A}.>"),
        ("{{ Account-Hash( ) }}", A),
        ("{{account-hash-import()}}.{{account-hash()}}", f"{B}.{A}"),
        ("a.{{wildcard(1)}}.$2.{{partition(3,1)}}", "a.{{wildcard(1)}}.$2.{{partition(3,1)}}"),
        ("x{{account-hash()}}", "x{{account-hash()}}"),
        ("{{account-hash}}", "{{account-hash}}"),
        ("{{account-hash-leaf-remote()}}.{{account-hash()}}", "{{account-hash-leaf-remote()}}." + A),
        ("plain.*", "plain.*"),
    ],
)
def test_what_a_subject_becomes(subject: str, expected: str) -> None:
    assert AccountNames("A", "B", None).expand(subject) == expected


def test_the_other_end_of_a_link_is_known_later() -> None:
    assert AccountNames("A", leaf_remote="B").expand_all(["{{account-hash-leaf-remote()}}.x", "y"]) == [f"{B}.x", "y"]


def test_what_is_left_open() -> None:
    waiting = AccountNames("A", leaf_remote=None)
    assert waiting.leaves_open(["x", "a.{{account-hash-leaf-remote()}}"])
    assert not waiting.leaves_open(["x", "a.{{account-hash()}}", "{{wildcard(1)}}"])
    assert not AccountNames("A", leaf_remote="B").leaves_open(["{{account-hash-leaf-remote()}}"])


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("{{account-hash(x)}}", "too many arguments passed to the function in {{account-hash(x)}}"),
        ("a.{{account-hash(a,b)}}", "too many arguments passed to the function in {{account-hash(a,b)}}"),
        ("{{account-hash-import()}}", "function is not available in this context in {{account-hash-import()}}"),
        (
            "{{account-hash-leaf-remote()}}",
            "function is not available in this context in {{account-hash-leaf-remote()}}",
        ),
    ],
)
def test_what_means_nothing_there(subject: str, why: str) -> None:
    with pytest.raises(TransformError) as raised:
        AccountNames("A").expand(subject)
    assert str(raised.value) == f"invalid mapping destination: {why}"
