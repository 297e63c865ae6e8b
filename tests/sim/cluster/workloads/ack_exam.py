"""Acks and their times, with a consumer that nothing disturbs: when a message comes again, how often, and when not."""

from __future__ import annotations

from tests.model.ack_history import AckWriter
from tests.sim.cluster.played import PlayedExam


class AckExam(PlayedExam):
    name = "exam-acks"
    writer = AckWriter
    promises = (
        "a message comes again after its ack_wait, its backoff or the delay of its NAK, and not before",
        "a message is given up after max_deliver, with an advisory, and what is terminated does not come again",
        "max_ack_pending holds messages back, and an ack of all counts for what is below",
    )
