"""A durable pull consumer with dead letters: clients ack, refuse, terminate and forget, and what was given up is in
another stream, once (checkers/letters.py)."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from chaos.workloads.consumers import CONSUMER, Consumers
from testkit.client import Client, Msg, create_stream
from testkit.consumer_client import SECOND

TARGET = "DEAD"
TRIES_OF_EACH = 2


class Letters(Consumers):
    name = "letters"
    consumer: ClassVar[dict[str, Any]] = {
        "ack_wait": SECOND, "max_ack_pending": 400, "max_deliver": TRIES_OF_EACH,
        "metadata": {"jetcluster.dead_letter.subject": "dead.{consumer}", "jetcluster.dead_letter.on_term": "true"},
    }  # fmt: skip

    async def create(self, client: Client, replicas: int) -> None:
        await create_stream(client, TARGET, ["dead.>"], replicas, self.storage)
        await super().create(client, replicas)
        self.history.note(self.name, "lettered")

    async def settle(self, client: Client, worker: str, seq: int, msg: Msg, what: float) -> None:
        if what < 0.3:
            await self._ack(client, worker, seq, msg)
        elif what < 0.5:
            self._say(client, worker, "ack", seq, msg, b"+ACK")
        elif what < 0.6:
            self._say(client, worker, "term", seq, msg, b"+TERM")
        elif what < 0.85:
            client.publish(msg.reply.decode(), b"-NAK")

    async def _is_dry(self, client: Client) -> bool:
        info = await self._jet(client).info(CONSUMER)
        return not (info["num_ack_pending"] or info["num_pending"] or info.get("dead_letters", {}).get("waiting"))

    async def finish(self, client: Client) -> None:
        """Notes each letter. Raises TimeoutError when some go on waiting, ClientError when one cannot be read."""
        await super().finish(client)
        last = int((await client.api(f"STREAM.INFO.{TARGET}"))["state"]["last_seq"])
        for seq in range(1, last + 1):
            found = (await client.api(f"STREAM.MSG.GET.{TARGET}", {"seq": seq}))["message"]
            fields = fields_of(base64.b64decode(found["hdrs"]))
            self.history.note(
                self.name, "letter", msg_id=base64.b64decode(found.get("data") or "").decode(),
                seq=int(fields["Sequence"]), count=int(fields["Deliveries"]), error=fields["Reason"],
                expect=TRIES_OF_EACH,
            )  # fmt: skip


def fields_of(block: bytes) -> dict[str, str]:
    """Returns the pairs `Nats-Dead-Letter-*` of a header block, without that prefix."""
    prefix = "Nats-Dead-Letter-"
    pairs = (line.partition(": ") for line in block.decode().split("\r\n"))
    return {name.removeprefix(prefix): value for name, _, value in pairs if name.startswith(prefix)}
