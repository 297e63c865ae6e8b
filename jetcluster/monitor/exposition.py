"""Samples by family, in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from jetcluster.latency import BOUNDS, Latency

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_SAMPLES = 200_000
"""Samples of one scrape; further ones are left out, and a separate sample reports that."""
TRUNCATED = "jetcluster_metrics_truncated"

Labels = Sequence[tuple[str, object]]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Exposition:
    """The samples of one scrape, by family."""

    def __init__(self) -> None:
        self.truncated = False
        self._samples = 0
        self._families: dict[str, list[str]] = {}
        """Lines by family name, HELP and TYPE first."""

    def gauge(self, name: str, help: str, value: float, labels: Labels = ()) -> None:
        self._sample("gauge", name, help, value, labels)

    def gauges(self, prefix: str, labels: Labels, values: Mapping[str, float]) -> None:
        """Adds a gauge for each value, with its unprefixed name as the help text."""
        for key, value in values.items():
            self.gauge(f"{prefix}_{key}", key, value, labels)

    def counter(self, name: str, help: str, value: float, labels: Labels = ()) -> None:
        """Adds a counter; `name` ends with `_total`, except for the exporter's names."""
        self._sample("counter", name, help, value, labels)

    def histogram(self, name: str, help: str, latency: Latency, labels: Labels = ()) -> None:
        """Adds a histogram in seconds."""
        counts = list(latency.counts)
        family = self._family("histogram", name, help, len(counts) + 2)
        if family is None:
            return
        bounds = [*(format(bound, "g") for bound in BOUNDS), "+Inf"]
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            family.append(f"{name}_bucket{label_text([*labels, ('le', bound)])} {count}")
        shown = label_text(labels)
        family.append(f"{name}_sum{shown} {latency.seconds!r}")
        family.append(f"{name}_count{shown} {sum(counts)}")

    def render(self) -> bytes:
        lines = [line for family in self._families.values() for line in family]
        lines += [f"# TYPE {TRUNCATED} gauge", f"{TRUNCATED} {int(self.truncated)}", ""]
        return "\n".join(lines).encode()

    def _sample(self, kind: str, name: str, help: str, value: float, labels: Labels) -> None:
        family = self._family(kind, name, help, 1)
        if family is not None:
            family.append(f"{name}{label_text(labels)} {value + 0!r}")  # + 0: a bool is a number

    def _family(self, kind: str, name: str, help: str, samples: int) -> list[str] | None:
        if self._samples + samples > MAX_SAMPLES:
            self.truncated = True
            return None
        self._samples += samples
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        return family


def label_text(labels: Labels) -> str:
    """Returns `{a="b",c="d"}`, or "" without labels."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels) + "}"
