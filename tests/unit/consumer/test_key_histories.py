"""Order per key at the owner, in random histories with a judge."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.state.turn import ACK, DELIVER_SOME, FIRST, GONE, RELEASE, TERM
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import SECOND, Frame, Rig
from tests.unit.consumer.test_members import inbox


class Judge:
    """Deliveries and acks, as the log has them, and whether they are in order."""

    def __init__(self, rig: Rig, limit: int, key: Callable[[bytes], bytes]) -> None:
        self.rig = rig
        self.limit = limit
        self.key = key
        self.subjects: dict[int, bytes] = {}
        self.out: dict[int, None] = {}
        self.settled: set[int] = set()
        self._read = 0

    def follow(self) -> None:
        """Reads on in the log."""
        log, self._read = self.rig.log[self._read :], len(self.rig.log)
        for kind, value in log:
            if kind in FIRST:
                for seq in value[0] if kind == DELIVER_SOME else value:  # type: ignore[index,union-attr]
                    self._delivered(seq)
            elif kind in (ACK, TERM, GONE):
                for seq in value:  # type: ignore[union-attr]
                    if seq in self.out:
                        self._settle(seq)

    def removed(self) -> None:
        """Forgets what is not stored any more: right after a removal."""
        for seq in self.subjects.keys() - self.settled:
            if not self.rig.node.store.contains(seq):
                self._settle(seq)

    def _delivered(self, seq: int) -> None:
        if seq in self.settled:
            return  # removed before this was applied
        mine = self.key(self.subjects[seq])
        alike = [s for s, of in self.subjects.items() if self.key(of) == mine and s not in self.settled]
        others = [s for s in alike if s in self.out]
        assert seq not in self.out, (seq, "is delivered twice as if for the first time")
        assert len(others) < self.limit, (seq, others, "too many are out")
        assert all(s in self.out for s in alike if s < seq), (seq, "came before an earlier one")
        self.out[seq] = None

    def _settle(self, seq: int) -> None:
        self.out.pop(seq, None)
        self.settled.add(seq)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("inboxes", ["unknown", "members"])
@pytest.mark.parametrize("seed", range(8))
def test_in_random_histories_all_come_in_order_and_nothing_is_held_for_ever(
    retention: str, inboxes: str, seed: int, limit: int
) -> None:
    rng = Random(seed)
    by_token = seed % 2 == 1
    config: dict[str, Any] = {"max_ack_pending_per_subject": limit, "ack_wait": 5 * SECOND}
    config |= {"key": "token:2"} if by_token else {}
    config |= {"max_ack_pending": 4} if seed % 3 == 0 else {}
    r = Rig(stream={"retention": retention}, **config)
    judge = Judge(r, limit, (lambda s: s.split(b".")[1]) if by_token else (lambda s: s))
    names = [inbox("abc"[i]) if inboxes == "members" else b"box%d" % i for i in range(3)]
    boxes = [r.bus.listen(name) for name in names]
    seen: dict[int, Frame] = {}
    kinds = ["publish", "pull", "pull", "ack", "ack", "ack", "nak", "term", "wait", "crash", "lose", "hold", "remove"]
    kinds += ["deaf"] if inboxes == "members" else []
    for _ in range(300):
        pending = set(r.state.pending)
        seen = {seq: frame for seq, frame in seen.items() if seq in pending}
        seen |= {frame.seq: frame for box in boxes for frame in box.take() if frame.reply}
        match rng.choice(kinds):
            case "publish":
                words = [b"s.%d.%d" % (rng.randrange(4), rng.randrange(2)) for _ in range(rng.randint(1, 6))]
                judge.subjects.update(enumerate(words, r.node.store.last_seq + 1))
                r.publish(*words)
            case "pull":
                r.next(rng.choice(names), batch=rng.randint(1, 4), expires=rng.choice([1, 8]) * SECOND)
            case "ack" | "nak" | "term" as word if seen:
                r.ack(rng.choice(list(seen.values())), {"ack": b"", "term": b"+TERM", "nak": b"-NAK"}[word])
            case "wait":
                r.advance(rng.choice([0.5, 6]))
            case "deaf":
                name = rng.choice(names)
                if name in r.bus.inboxes:
                    del r.bus.inboxes[name]
                else:
                    r.bus.inboxes[name] = boxes[names.index(name)]
            case "crash":
                r.release()
                r.crash()
            case "lose":
                r.lose()
                r.settle()
            case "hold":
                r.hold = not r.hold
                r.settle()
            case "remove" if rng.random() < 0.4:
                last = r.node.store.last_seq
                one = commands.encode_delete_msg(r.now, rng.randint(1, last + 1))
                r.node.apply(one if rng.random() < 0.8 else commands.encode_purge(r.now, seq=max(1, last - 5)))
                judge.removed()
                r.owner.freed([seq for seq in pending if seq not in r.state.pending])
                r.woken = True
                r.settle()
        judge.follow()
    r.bus.inboxes |= dict(zip(names, boxes, strict=True))
    r.release()
    for _ in range(len(judge.subjects)):
        for name in names:
            r.next(name, batch=3, expires=60 * SECOND)
        for frame in [frame for box in boxes for frame in box.take() if frame.reply]:
            r.ack(frame)
        judge.follow()
        r.advance(1)
    assert judge.settled == judge.subjects.keys(), "some were never delivered"
    assert not r.state.pending and r.state.unacked.held == 0
    assert tuple(r.state.view())[2:] == (r.state.delivered_cseq, r.node.store.last_seq, 0, 0)
    assert num_pending(r.state, r.node.store) == 0
    keys = r.owner.selection.keys
    assert keys is not None and keys.queues.waiting == keys.queues.blocked == 0
    assert RELEASE in r.kinds() or limit > 1
