"""A counter comes to what its sources and its own publishers have counted, in any order."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream.apply import sourced
from jetcluster.stream.apply.counters import payload_of
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.rules import link_key
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_sourced import Stream

UPS = ("UP1", "UP2", "UP3")


class Up:
    """A counter stream that is read: every message ever, and the totals."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = link_key({"name": name})
        self.totals: Counter[str] = Counter()
        self.messages: list[tuple[int, str, int]] = []
        """(sequence, subject, total) of what is still there."""
        self.last = 0

    def count(self, subject: str, increment: int) -> None:
        self.last += 1
        self.totals[subject] += increment
        self.messages.append((self.last, subject, self.totals[subject]))

    def purge(self, subject: str) -> None:
        """The counter begins at 0 again; that is seen with its next increment."""
        self.messages = [row for row in self.messages if row[1] != subject]
        del self.totals[subject]


class Rig:
    """Three upstreams, two replicas of the stream that they feed, and a link that loses, repeats and forgets."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ups = [Up(name) for name in UPS]
        self.there = set(UPS)
        self.replicas = [Stream(), Stream()]
        self.own = 0
        self.configure()

    def apply(self, command: bytes) -> Any:
        results = [replica.apply(command) for replica in self.replicas]
        assert self.replicas[0].machine.hash == self.replicas[1].machine.hash
        return results[0]

    @property
    def now(self) -> int:
        return self.replicas[0].now

    def configure(self) -> None:
        sources = [{"name": name} for name in sorted(self.there)]
        config = {"name": "S", "subjects": ["own"], "allow_msg_counter": True, "sources": sources}
        self.apply(commands.encode_update_config(0, config))

    def deliver(self, up: Up, most: int) -> None:
        """Some messages behind a place where the link may stand, or from anywhere before it: all that follow on."""
        cursor = self.replicas[0].machine.cursor(up.key)
        if cursor is None:
            begin = self.random.choice((0, 0, up.last // 2)) if self.own % 2 else 0
            self.apply(commands.encode_sourced(self.now, bodies.encode_sourced(up.key, b"id", 0, begin, 0)))
            cursor = sourced.Cursor(begin, b"id", 0)
        after = max(0, cursor.seq - self.random.choice((0, 0, 0, 1, 5)))
        rows = [row for row in up.messages if row[0] > after][:most]
        if not rows:
            return
        headers = [
            block(f"Nats-Incr: {self.random.randint(-9, 9)}", f"Nats-Stream-Source: {up.name} {seq} > > {subject} id")
            for seq, subject, _ in rows
        ]
        batch = Batch.encode([b"sum"] * len(rows), headers, [payload_of(total) for _, _, total in rows])
        seqs = [seq for seq, _, _ in rows]
        body = bodies.encode_sourced(up.key, b"id", 0, after, seqs[-1], (), seqs, batch)
        result = self.apply(commands.encode_sourced(self.now, body))
        assert not isinstance(result, ApiError), result

    def is_read(self, up: Up) -> bool:
        cursor = self.replicas[0].machine.cursor(up.key)
        return cursor is not None and all(seq <= cursor.seq for seq, _, _ in up.messages)

    def publish(self) -> None:
        increments = [self.random.randint(-50, 50) for _ in range(self.random.choice((1, 1, 3)))]
        headers = [block(f"Nats-Incr: {increment}") for increment in increments]
        count = len(increments)
        result = self.apply(commands.encode_publish(self.now, Batch.encode([b"sum"] * count, headers, [b""] * count)))
        self.own += sum(increments)
        assert int(result.verdicts[-1].total) == self.total()

    def toggle(self, up: Up) -> None:
        self.there ^= {up.name}
        self.configure()

    def total(self) -> int:
        message = self.replicas[0].store.queries.last_by_subject(b"sum")
        return int(json.loads(message.payload)["val"]) if message is not None else 0

    def step(self) -> None:
        up = self.random.choice(self.ups)
        subject = self.random.choice(("a", "b", "é"))
        what = self.random.random()
        if what < 0.4:
            up.count(subject, self.random.randint(-100, 100))
        elif what < 0.7:
            if up.name in self.there:
                self.deliver(up, self.random.choice((1, 2, 10)))
        elif what < 0.85:
            self.publish()
        elif what < 0.9:
            self.replicas[self.random.randrange(2)].restart()
        elif what < 0.95:
            self.toggle(up)
        elif up.totals[subject]:
            up.purge(subject)
            up.count(subject, self.random.randint(-100, 100))

    def settle(self) -> None:
        self.there = set(UPS)
        self.configure()
        for up in self.ups:
            while not self.is_read(up):
                self.deliver(up, 20)
            for subject in list(up.totals):  # one more increment of each shows what a late beginning has left out
                up.count(subject, 1)
            self.deliver(up, 100)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_the_total_is_the_sum_of_its_sources(seed: int) -> None:
    rig = Rig(Random(seed))
    for _ in range(80):
        rig.step()
    rig.settle()
    assert rig.total() == rig.own + sum(sum(up.totals.values()) for up in rig.ups)
    one, other = ([tuple(m) for m in replica.store.queries.scan(b">", 1)] for replica in rig.replicas)
    assert one == other
    recounted = sum(int(nats_fields(row[3])[b"Nats-Incr"]) for row in one)
    assert recounted == rig.total()
