"""A link on one machine: an upstream that the test plays, a bus and a log that are lists. `begun` makes one run."""

from __future__ import annotations

import json
from typing import Any

from jetcluster.mirror.links import Links
from jetcluster.mirror.ports import LinkDependencies, paces
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.rules import StreamRules
from testkit.twins.bus import MemBus
from testkit.twins.mem_kv import MemKv
from testkit.twins.time import ManualTime, SeededRng

CREATED = "2026-01-02T03:04:05.000000006Z"


class Bus(MemBus):
    """Keeps what is published; the test plays who answers."""

    account = "$G"

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, bytes, bytes]] = []
        """(subject, payload, reply)."""
        self.headers = b""
        """Headers of the newest message sent."""
        self.deaf = False

    def unsubscribe(self, subscription: Any) -> None:
        if subscription in self.subscriptions:
            super().unsubscribe(subscription)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        self.sent.append((subject, payload, reply))
        self.headers = headers
        return 0 if self.deaf else 1

    def arrive(self, target: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> int:
        takers = self.takers(target)
        for taker in takers:
            taker.callback(subject, reply, headers, payload, None)
        return len(takers)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(f"{event} {values.get('reason')}")

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(f"{event} {values.get('error')}")


class Rig:
    """`mirror.ports.LinkTarget` with a real machine; commands wait in `log` until `commit`."""

    def __init__(self, **config: Any) -> None:
        self.time = ManualTime()
        self.bus = Bus()
        self.lines = Log()
        self.store = BlockStore(MemKv(), 1, memory=False)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store)
        self.index = 0
        self.log: list[tuple[int, bytes]] = []
        self.closed = False
        self.damage: list[DamagedError] = []
        self.known: set[str] = set()
        self.configure(**config)
        self.around = LinkDependencies(self.bus, self.time, self.time, SeededRng(1), self.lines, self, paces())  # type: ignore[arg-type]
        self.links = Links(self.around, "S")
        self.upstream = {"created": CREATED, "state": {"last_seq": 0}, "config": {"retention": "limits"}}
        self.deliver = b""
        self.consumer: dict[str, Any] = {}
        self.dseq = 0

    # ---- Target

    @property
    def rules(self) -> StreamRules:
        return self.machine.rules

    def cursor(self, key: bytes) -> Any:
        return self.machine.cursor(key)

    def propose(self, command: bytes) -> int | None:
        if self.closed:
            return None
        self.index += 1
        self.log.append((self.index, command))
        return self.index

    def report_damage(self, error: DamagedError) -> None:
        self.damage.append(error)

    origin = b"C/$G/S/1"

    def knows(self, name: str) -> bool:
        return name in self.known

    # ---- the test's hands

    def configure(self, **config: Any) -> None:
        self.index += 1
        self.machine.apply(self.index, 1, commands.encode_update_config(0, {"name": "S", **config}))

    def commit(self) -> list[object]:
        """Applies what was proposed; the outcomes."""
        self.run()
        results = []
        while self.log:
            index, command = self.log.pop(0)
            results.append(self.machine.apply(index, 1, command))
            self.links.applied(index, results[-1])
            self.run()
        return results

    def run(self, seconds: float = 0.0) -> None:
        self.time.advance(seconds)

    def asked(self, part: str) -> tuple[bytes, bytes, bytes]:
        """The newest request whose subject holds `part`."""
        return next(sent for sent in reversed(self.bus.sent) if part.encode() in sent[0])

    def count(self, part: str) -> int:
        return sum(part.encode() in sent[0] for sent in self.bus.sent)

    def answer(self, part: str, answer: dict[str, Any]) -> None:
        reply = self.asked(part)[2]
        self.bus.arrive(reply, reply, b"", b"", json.dumps(answer).encode())

    def refuse(self, part: str, err_code: int = 10059) -> None:
        self.answer(part, {"error": {"code": 404, "err_code": err_code, "description": "stream not found"}})

    def inform(self, last_seq: int = 0, **more: Any) -> None:
        self.upstream = {**self.upstream, **more, "state": {"last_seq": last_seq, "messages": last_seq}}
        self.answer("STREAM.INFO", self.upstream)

    def accept(self, delivered: int = 0, pending: int = 0, consumer_seq: int = 0) -> dict[str, Any]:
        """Answers the CONSUMER.CREATE; returns its configuration."""
        config = json.loads(self.asked("CONSUMER.CREATE")[1])["config"]
        self.deliver = config["deliver_subject"].encode()
        self.dseq = 0
        position = {"consumer_seq": consumer_seq, "stream_seq": delivered}
        self.answer("CONSUMER.CREATE", {"name": config["name"], "delivered": position, "num_pending": pending})
        found: dict[str, Any] = config
        return found

    def live(self, last_seq: int = 0, delivered: int = 0, pending: int = 0) -> dict[str, Any]:
        """Leads from the beginning of an attempt to where messages may come."""
        self.inform(last_seq)
        config = self.accept(delivered, pending)
        self.commit()
        return config

    def send(
        self, *seqs: int, subject: bytes = b"up", headers: bytes = b"", skip: int = 0, pending: int = 0, tries: int = 1,
        sent_ns: int = 10**18,
    ) -> int:  # fmt: skip
        """Deliveries; `skip` of them were lost before. How many takers the last one found."""
        found = 0
        self.dseq += skip
        for seq in seqs:
            self.dseq += 1
            reply = b"$JS.ACK.UP.C.%d.%d.%d.%d.%d" % (tries, seq, self.dseq, sent_ns + seq, pending)
            found = self.bus.arrive(self.deliver, subject, reply, headers, b"%d" % seq)
        return found

    def take(self, *seqs: int, **more: Any) -> None:
        """Deliveries that are stored."""
        self.send(*seqs, **more)
        self.commit()

    def begin_again(self) -> None:
        self.links.end()
        self.links.begin()

    def control(self, *fields: str, reply: bytes = b"", text: str = "Idle Heartbeat") -> None:
        block = "".join(f"{line}\r\n" for line in (f"NATS/1.0 100 {text}", *fields, "")).encode()
        self.bus.arrive(self.deliver, self.deliver, reply, block, b"")

    def stored(self) -> list[tuple[int, bytes]]:
        return [(m.seq, m.payload) for m in self.store.queries.scan(b">", 1)]

    @property
    def link(self) -> Any:
        return next(iter(self.links.by_key.values()))

    @property
    def error(self) -> str:
        return str(self.link.error or "")


MIRROR: dict[str, Any] = {"mirror": {"name": "UP"}}


def begun(**config: Any) -> Rig:
    rig = Rig(**(config or MIRROR))
    rig.links.begin()
    return rig


SOURCE: dict[str, Any] = {"sources": [{"name": "UP"}]}
