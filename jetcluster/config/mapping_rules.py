"""Subject mappings made ready: which destination a message takes, by weight and by cluster.

Texts of the errors are nats-server's; precedent: AddWeightedMappings in its accounts.go.
"""

from __future__ import annotations

from jetcluster.config.sharing import MappingDestination, MappingOptions
from jetcluster.model import subjects
from jetcluster.model.import_transforms import is_wild, numbered
from jetcluster.model.transforms import SubjectTransform, TransformError, check_mapping

ALL = 100


class Mapping:
    """One source and where it goes. Weights are cumulative: a message takes the first destination whose weight is
    above a number from 0 to 99, and is lost where there is none."""

    __slots__ = ("destinations", "in_clusters", "source", "wild")

    def __init__(self, options: MappingOptions) -> None:
        """Raises TransformError."""
        self.source = options.source.encode()
        self.wild = is_wild(self.source)
        _check(options)
        listed = {destination.subject for destination in options.destinations}
        grouped: dict[str, list[MappingDestination]] = {"": []}
        for destination in options.destinations:
            grouped.setdefault(destination.cluster, []).append(destination)
        made = {cluster: self._made(some, options.source in listed) for cluster, some in grouped.items()}
        self.destinations = made.pop("")
        self.in_clusters = made

    def of(self, cluster: str) -> list[tuple[SubjectTransform, int]]:
        """(transform, weight up to and with it) of a server in that cluster."""
        return self.in_clusters.get(cluster) or self.destinations

    def _made(self, destinations: list[MappingDestination], lossy: bool) -> list[tuple[SubjectTransform, int]]:
        """`lossy`: the source is a destination itself, so what is left over is lost on purpose."""
        source = self.source
        weighed = [(SubjectTransform(source, d.subject.encode()), d.weight) for d in destinations]
        total = sum(weight for _, weight in weighed)
        if total != ALL and not lossy:
            weighed.append((SubjectTransform(source, numbered(source)), ALL - total))
        weighed.sort(key=_weight)
        reached = 0
        found = []
        for transform, weight in weighed:
            reached += weight
            found.append((transform, reached))
        return found


def _weight(weighed: tuple[SubjectTransform, int]) -> int:
    return weighed[1]


def _check(options: MappingOptions) -> None:
    if not subjects.is_valid(options.source):
        raise TransformError("invalid subject")
    seen: set[str] = set()
    totals: dict[str, int] = {}
    for destination in options.destinations:
        if destination.subject in seen:
            raise TransformError(f'duplicate entry for "{destination.subject}"')
        seen.add(destination.subject)
        if destination.weight > ALL:
            raise TransformError("individual weights need to be <= 100")
        total = totals[destination.cluster] = totals.get(destination.cluster, 0) + destination.weight
        if total > ALL:
            raise TransformError("total weight needs to be <= 100")
        check_mapping(options.source.encode(), destination.subject.encode())
