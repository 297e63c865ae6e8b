"""Weights of mappings: cumulative, the rest stays, scoped to clusters."""

from __future__ import annotations

import pytest

from jetcluster.config.account_options import MappingDestination, MappingOptions
from jetcluster.config.import_rules import SubjectMapping
from jetcluster.model.transforms import TransformError


def weights(mapping: SubjectMapping, cluster: str = "") -> list[tuple[bytes, int]]:
    return [(transform.destination, weight) for transform, weight in mapping.of(cluster)]


def made(source: str, *destinations: MappingDestination) -> SubjectMapping:
    return SubjectMapping(MappingOptions(source, list(destinations)), "A")


def test_what_is_left_over_stays() -> None:
    mapping = made("a.*", MappingDestination("b.$1", 70))
    assert weights(mapping) == [(b"a.$1", 30), (b"b.$1", 100)]


def test_a_source_among_the_destinations_means_loss() -> None:
    mapping = made("a", MappingDestination("a", 20), MappingDestination("b", 10))
    assert weights(mapping) == [(b"b", 10), (b"a", 30)]


def test_other_clusters_keep_the_subject() -> None:
    mapping = made("a", MappingDestination("b", 100, "C"))
    assert weights(mapping, "C") == [(b"b", 100)]
    assert weights(mapping, "D") == [(b"a", 100)]
    assert weights(mapping) == [(b"a", 100)]


@pytest.mark.parametrize(
    ("destinations", "why"),
    [
        ([MappingDestination("b", 60), MappingDestination("c", 60)], "total weight needs to be <= 100"),
        ([MappingDestination("b", 10), MappingDestination("b", 10)], 'duplicate entry for "b"'),
        ([MappingDestination("b.$1")], r"wildcard index out of range in \$1$"),
    ],
)
def test_refused(destinations: list[MappingDestination], why: str) -> None:
    with pytest.raises(TransformError, match=why):
        made("a", *destinations)
