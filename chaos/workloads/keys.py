"""A durable pull consumer in order per key, with several clients that forget and refuse: of each key one message is out
at a time, and in order (checkers/keys.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from chaos.workloads.consumers import Consumers
from testkit.client import Client
from testkit.consumer_client import SECOND

KEYS = 7


class Keys(Consumers):
    name = "keys"
    consumer: ClassVar[dict[str, Any]] = {
        "ack_wait": SECOND, "max_ack_pending": 400, "metadata": {"jetcluster.max_ack_pending_per_subject": "1"}
    }  # fmt: skip

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        self.history.note(self.name, "keyed")

    def subject(self, turn: int) -> str:
        return f"{self.name}.k{turn % KEYS}"
