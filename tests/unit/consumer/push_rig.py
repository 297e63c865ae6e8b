"""One consumer with its owner, a real router with clients, and a log that the test lets go on."""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.owner.scheduler import ConsumerScheduler, OwnerWakes
from jetcluster.consumer.state.turn import Value
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from testkit.server_rig import Peer, ServerRig
from tests.unit.consumer.replica_rig import T0
from tests.unit.consumer.rig import SECOND, Frame, OwnedConsumer


def frames(data: bytes) -> list[Frame]:
    """Frames that a client was sent: pings are left out, and all others are MSG or HMSG."""
    found, at = [], 0
    data = data.replace(b"PING\r\n", b"")
    while at < len(data):
        end = data.index(b"\r\n", at)
        args = data[at:end].split(b" ")
        assert args[0] in (b"MSG", b"HMSG"), args
        fixed = 4 if args[0] == b"MSG" else 5
        size, block = int(args[-1]), int(args[-2]) if fixed == 5 else 0
        start = end + 2
        reply = args[3] if len(args) > fixed else b""
        found.append(Frame(args[1], reply, data[start : start + block], data[start + block : start + size]))
        at = start + size + 2
    return found


class Rig(OwnedConsumer):
    """`lag`: seconds from an op to its being applied; None: only by `commit`. The others: see `OwnerDependencies`."""

    def __init__(
        self,
        *,
        lag: float | None = 0.002,
        stream: dict[str, Any] | None = None,
        replicated: bool = True,
        ack_v2: bool = False,
        **config: Any,
    ) -> None:
        self.replicated, self.ack_v2 = replicated, ack_v2
        self.server_rig = ServerRig()
        self.time = self.server_rig.time
        self.time.set_time_ns(T0)
        self.lag = lag
        super().__init__(stream)
        self.wakes = ConsumerScheduler(self.time, self.time, lambda: True, lambda call: call())
        self.create(**config)

    def create(self, **config: Any) -> None:
        self.sync()
        config = {"deliver_subject": "inbox", "ack_policy": "none", "max_ack_pending": 0, **config}
        result = self.node.create(**config)
        assert isinstance(result, int), result
        self.own()

    def own(self) -> None:
        """A new owner begins."""
        self.handle = OwnerWakes(self.wakes)
        self.make_owner(
            bus=self.server_rig.router,
            wakes=self.handle,
            rng=self.server_rig.server.rng,
            render=lambda event: b"{}",
            replicated=self.replicated,
            ack_v2=self.ack_v2,
        )
        self.handle.bind(self.owner.run, self.owner.tick)
        self.owner.start()

    def submit(self, kind: int, value: Value, token: object = None, messages: int = 0) -> None:
        if not self.ops and self.lag is not None:
            self.time.call_later(self.lag, self.commit)
        super().submit(kind, value, token, messages)

    # -- what happens around it

    def publish(self, *messages: tuple[bytes, bytes] | bytes) -> None:
        """Subjects, or (subject, payload) pairs, as one batch."""
        pairs = [message if isinstance(message, tuple) else (message, b"x") for message in messages]
        self.node.now += len(pairs)
        self.sync()
        batch = Batch.encode([subject for subject, _ in pairs], [], [payload for _, payload in pairs])
        self.node.apply(commands.encode_publish(self.node.now, batch))
        if self.owner.wants_messages:
            self.handle.soon()

    def update(self, **config: Any) -> None:
        self.sync()
        self.node.create(**{"deliver_subject": "inbox", "ack_policy": "none", "max_ack_pending": 0, **config})
        self.owner.configured()

    def pause(self, seconds: float) -> None:
        self.sync()
        until = self.time.time_ns() + int(seconds * SECOND)
        self.node.extended(commands.CONSUMER_PAUSE, {"name": "C", "pause_until": until})
        self.owner.configured()

    def advance(self, seconds: float = 0.01) -> None:
        """Time goes on in steps of a millisecond."""
        for _ in range(max(1, round(seconds * 1000))):
            self.time.advance(0.001)

    def got(self, peer: Peer, seconds: float = 0.01) -> list[Frame]:
        """Frames that `peer` gets within `seconds`."""
        self.advance(seconds)
        return frames(peer.read())
