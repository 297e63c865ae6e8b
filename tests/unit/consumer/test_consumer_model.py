"""Replicas agree with each other, whatever happens to them, and with a model that is as plain as can be."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.state import turn
from jetcluster.consumer.state.letters import MAX_DELIVER, TERMINATED
from jetcluster.consumer.state.ops import OPS
from jetcluster.consumer.state.pending import HELD, NEVER
from jetcluster.consumer.state.turn import Op, SentMessages, SettledMessages, TurnResult
from jetcluster.errors import ApiError
from jetcluster.stream.log import commands
from tests.unit.consumer.plain_model import SUBJECTS, Model
from tests.unit.consumer.replica_rig import OWNER, SECOND, Node

NAMES = ["A", "B", "C"]
FILTERS = ["", "s.a", "s.*", "t"]
CONFIGS = [
    {},
    {"max_deliver": 2},
    {"ack_policy": "all"},
    {"ack_policy": "none"},
    {"deliver_policy": "new"},
    {"max_deliver": 1, "dead_letter": {"subject": "dead", "on_term": True}},
    {"ack_policy": "all", "max_deliver": 2, "dead_letter": {"subject": "dead", "on_term": True}},
    {"backoff": [SECOND, 3 * SECOND], "max_deliver": 3},
    {"deliver_policy": "last_per_subject"},
]


def plain(outcome: Any) -> Any:
    return outcome.seqs if isinstance(outcome, SentMessages | SettledMessages) else outcome


class Steps:
    """Random histories: what consumers do as they would, mostly, so that histories get somewhere, and garbage."""

    def __init__(self, seed: int, model: Model) -> None:
        self.rng = Random(seed)
        self.model = model

    def step(self) -> tuple[Any, ...]:
        rng = self.rng
        name = rng.choice(NAMES)
        kinds = {"publish": 6, "next": 8, "settle": 10, "turn": 6, "create": 2, "commit": 2, "restart": 1, "install": 1,
                 "garbage": 1, "delete_msg": 2, "delete": 0.4, "move": 0.4, "reset": 0.4, "purge": 0.3}  # fmt: skip
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "publish":
            return kind, rng.choices(SUBJECTS, k=rng.randint(1, 6))
        if kind == "create":
            return kind, name, rng.choice(CONFIGS), rng.choice(FILTERS)
        if kind == "turn":
            return kind, [(rng.choice(NAMES), self.op()) for _ in range(rng.randint(1, 4))]
        if kind == "next":
            return kind, name, rng.randint(1, 5)
        if kind == "settle":
            op = rng.choice(
                [
                    turn.ACK,
                    turn.ACK,
                    turn.TERM,
                    turn.REDELIVER,
                    turn.REDELIVER,
                    turn.EXHAUSTED,
                    turn.PROGRESS,
                    turn.BURY,
                    turn.BURY,
                    turn.BURIED,
                ]
            )
            return kind, name, op, rng.choice([1, 2, 8]), rng.random() < 0.3
        if kind == "delete_msg":
            return kind, self.seq()
        if kind in ("delete", "move"):
            return kind, name
        if kind == "reset":
            return kind, name, rng.choice([0, self.seq()])
        return (kind,)

    def seq(self) -> int:
        return self.rng.randint(max(1, self.model.last - 25), self.model.last + 2)

    def op(self) -> tuple[int, Any]:
        rng = self.rng
        kind = rng.choice(list(OPS))
        seqs = [self.seq() for _ in range(rng.randint(0, 8))]
        if kind == turn.DELIVER:
            return kind, rng.choice([seqs, sorted(set(seqs))])
        if kind == turn.DELIVER_SOME:
            chosen = [seq for seq in sorted(set(seqs)) if rng.random() < 0.9]
            cut = rng.randint(0, len(chosen))
            delivered = set(rng.sample(chosen, cut))
            return kind, (sorted(delivered), [seq for seq in chosen if seq not in delivered or rng.random() < 0.05])
        if kind == turn.BURY:
            return kind, [(seq, rng.choice([MAX_DELIVER, TERMINATED]), b"why") for seq in seqs]
        if kind == turn.NAK:
            return kind, [(seq, rng.choice([0, 5, 2**64 - 1])) for seq in seqs]
        if kind == turn.ADVANCE:
            return kind, (self.seq(), rng.randint(0, 5))
        if kind in (turn.WAIT, turn.UNWAIT):
            return kind, rng.choice([b"x", b"y"])
        if kind == turn.PIN:
            return kind, (b"g", b"id")
        return kind, self.seq() if kind == turn.SKIP else seqs


class History:
    """The same commands to two replicas and the model."""

    def __init__(self, retention: str, max_msgs: int) -> None:
        config = {"retention": retention, "max_msgs": max_msgs or -1}
        self.nodes = [Node(config), Node(config)]
        self.model = Model(retention, max_msgs)

    def both(self, apply: Any) -> Any:
        """Results of one command, compared."""
        first, second = (apply(node) for node in self.nodes)
        if isinstance(first, TurnResult):
            assert first.outcomes == second.outcomes and first.digest_bytes() == second.digest_bytes()
        else:
            assert first == second
        return first

    def step(self, step: tuple[Any, ...]) -> None:
        kind, *args = step
        for node in self.nodes:
            node.now += 7
        getattr(self, kind)(*args)
        self.model.trim()
        self.compare()

    def publish(self, subjects: list[bytes]) -> None:
        self.both(lambda node: node.publish(*subjects).first_seq)
        self.model.publish(subjects)

    def create(self, name: str, config: dict[str, Any], filter: str) -> None:
        config = {**config, **({"filter_subject": filter} if filter else {})}
        result = self.both(lambda node: node.create(name, **config))
        expected = self.model.create(name, config)
        assert isinstance(result, ApiError) if expected is None else bool(result) == bool(expected), (result, expected)

    def delete(self, name: str) -> None:
        result = self.both(lambda node: node.delete(name))
        assert isinstance(result, ApiError) == (self.model.delete(name) is None)

    def move(self, name: str) -> None:
        if name in self.model.consumers:
            state = self.nodes[0].state(name)
            body = {"moves": [[state.cid, state.epoch, "elsewhere"]]}
            assert self.both(lambda node: node.extended(commands.CONSUMER_OWNER, body)) == 1

    def reset(self, name: str, seq: int) -> None:
        result = self.both(lambda node: node.extended(commands.CONSUMER_RESET, {"name": name, "seq": seq}))
        expected = self.model.reset(name, seq)
        assert isinstance(result, ApiError) if expected is None else result == expected

    def turn(self, ops: list[tuple[str, tuple[int, Any]]]) -> None:
        known = [(name, op) for name, op in ops if name in self.model.consumers]
        states = self.nodes[0].table.by_name
        log = [Op(states[name].cid, states[name].epoch, *op) for name, op in known]
        result = self.both(lambda node: node.turn(log))
        assert result.accepted
        expected = [self.model.op(name, *op, self.nodes[0].now) for name, op in known]
        assert [plain(outcome) for outcome in result.outcomes] == expected

    def next(self, name: str, count: int) -> None:
        consumer = self.model.consumers.get(name)
        if consumer is not None:
            ahead = [
                s for s, subject in self.model.messages.items() if s > consumer.sseq and consumer.wants(s, subject)
            ]
            parked = sorted(consumer.parked)
            if parked and count % 2:
                self.turn([(name, (turn.RELEASE, parked[:count]))])
            elif ahead and consumer.config.get("ack_policy", "explicit") == "explicit" and count > 2:
                self.turn([(name, (turn.DELIVER_SOME, (ahead[:count:2], ahead[1:count:2])))])
            elif ahead and consumer.acks:
                self.turn([(name, (turn.DELIVER, ahead[:count]))])
            elif ahead:
                self.turn([(name, (turn.ADVANCE, (ahead[:count][-1], len(ahead[:count]))))])

    def settle(self, name: str, kind: int, count: int, last: bool) -> None:
        consumer = self.model.consumers.get(name)
        if consumer is not None:
            pending = list(consumer.letters if kind == turn.BURIED else consumer.pending)
            chosen = pending[-count:] if last else pending[:count]
            value = [(seq, seq % 2 + 1, b"") for seq in chosen] if kind == turn.BURY else chosen
            self.turn([(name, (kind, value))])

    def purge(self) -> None:
        self.both(lambda node: node.apply(commands.encode_purge(node.now)))
        self.model.purge()

    def delete_msg(self, seq: int) -> None:
        result = self.both(lambda node: node.apply(commands.encode_delete_msg(node.now, seq)))
        assert isinstance(result, ApiError) == (not self.model.delete_msg(seq))

    def garbage(self) -> None:
        """Turns that do not count."""
        for session, serial, first in ((1, 10**6, False), (0, 1, True), (1, self.nodes[0].serial, False)):
            body = turn.encode(OWNER, session, serial, [Op(1, 1, turn.SKIP, 1)], first=first)
            command = commands.encode_extended(self.nodes[0].now, commands.CONSUMER_TURN, body)
            if self.nodes[0].serial:
                assert not self.both(lambda node, command=command: node.apply(command)).accepted

    def commit(self) -> None:
        self.nodes[0].kv.commit()

    def restart(self) -> None:
        self.nodes[1].restart()

    def install(self) -> None:
        self.nodes[1].install(self.nodes[0])

    def compare(self) -> None:
        n, model = self.nodes[0], self.model
        assert self.nodes[0].machine.hash == self.nodes[1].machine.hash
        assert n.stored() == sorted(model.messages)
        assert set(n.table.by_name) == set(model.consumers)
        for name, consumer in model.consumers.items():
            state = n.state(name)
            assert n.floors(name) == (consumer.cseq, consumer.sseq, *consumer.floor)
            assert tuple(state.view()) == consumer.shown()
            held = dict.fromkeys(consumer.parked, tuple(HELD))
            assert {seq: tuple(entry) for seq, entry in state.pending.items()} == consumer.pending | held
            assert state.unacked.held == len(held)
            assert (state.unacked.first_unacked() or NEVER) == min(
                (c for c, _, _ in consumer.pending.values()), default=NEVER
            )
            assert list(state.pending) == sorted(state.pending)
            assert state.unacked.redelivered == sum(count > 1 for _, _, count in consumer.pending.values())
            assert set(state.waiting) == consumer.waiting
            assert {seq: one.reason for seq, one in state.letters.by_seq.items()} == {
                seq: consumer.reasons[seq] for seq in consumer.letters
            }
            if consumer.config.get("deliver_policy") != "last_per_subject":
                ahead = [s for s, sub in model.messages.items() if s > consumer.sseq and consumer.wants(s, sub)]
                assert num_pending(state, n.store) == len(ahead) + len(consumer.parked)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_replicas_agree_with_each_other_and_with_the_model(retention: str, seed: int) -> None:
    history = History(retention, 30 if seed % 3 == 0 else 0)
    steps = Steps(seed, history.model)
    history.step(("create", "A", {}, "s.*" if retention == "workqueue" else ""))
    for number in range(300):
        history.step(steps.step())
        if number % 50 == 0:
            assert history.nodes[0].everything() == history.nodes[1].everything()
    history.restart()
    assert history.nodes[0].everything() == history.nodes[1].everything()
    history.compare()
