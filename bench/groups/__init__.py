"""The groups of rows, in the order of the page."""

from __future__ import annotations

from bench.groups import batches, consuming, core, publishing, reads, resting, starting

GROUPS = (
    core.ONE, core.TWO, publishing.R1, publishing.R3, publishing.KV, batches.R1, batches.R3, reads.DIRECT,
    reads.SUBJECTS, consuming.R1, consuming.R3, starting.COLD, starting.R1, starting.R3, resting.CLUSTER, resting.MANY,
)  # fmt: skip
