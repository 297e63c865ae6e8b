"""Consumers of a stream that stands still: where they begin, what their filters match, what they count."""

from __future__ import annotations

from tests.model.deliver_history import DeliverWriter
from tests.sim.cluster.played import PlayedExam


class DeliverExam(PlayedExam):
    name = "exam-deliver"
    writer = DeliverWriter
    most = 6
    promises = (
        "a consumer begins where its deliver policy says, delivers what its filters match, and counts it right",
        "an ordered list of what is pending, delivered and acknowledged is the same for consumer and stream",
    )
