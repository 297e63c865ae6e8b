"""The return of replicas whose journal was damaged, at the moment at which a leader grants each: enough others have
answered that leader since it was asked. The harm takes a vote that the damaged journal has forgotten, and a leader that
does not know of the one that was elected with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any
from unittest.mock import patch

from jetcluster.raft.core.read_index import ReadRounds
from jetcluster.raft.core.snapshots import Rejoin
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import machine_of


class Question:
    """The question of one replica to its leader."""

    def __init__(self, rounds: ReadRounds, peer: str) -> None:
        self.rounds = rounds
        self.peer = peer
        self.context = attrgetter("_context")(rounds)
        """The newest one that was sent before the question: answers to later ones count."""
        self.answered: set[str] = set()
        """Those who have answered since."""


class Returns:
    """It tells `deployment.failed` of replicas that return too early."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self.asking = ""
        """Raft's id of the replica that asks, while its leader takes the question."""
        self.open: list[Question] = []
        self._deployment = deployment

    def around(self, rounds: ReadRounds, callback: Callable[[bool], None]) -> Callable[[bool], None]:
        """The callback of a question that is asked now."""
        question = Question(rounds, self.asking)
        self.open.append(question)

        def called(leads: bool) -> None:
            self.open.remove(question)
            if leads:
                self.granted(question)
            callback(leads)

        return called

    def answers(self, rounds: ReadRounds, peer: str, context: int) -> None:
        for question in self.open:
            if question.rounds is rounds and context > question.context:
                question.answered.add(peer)

    def granted(self, question: Question) -> None:
        """The voters without those who have answered, and with the one that asks, must not be a majority."""
        state = attrgetter("_state")(question.rounds)
        machine = machine_of(self._deployment.machines.values(), state.log)
        if machine is None:
            return
        self.looked += 1
        others = (question.answered | {state.me}) - {question.peer}
        for config in state.log.configs_from(state.engine.commit):
            silent = [voter for voter in config.voters if voter not in others]
            if 2 * len(silent) > len(config.voters):
                what = f"{question.peer} returns, and of {config.voters} only {sorted(others)} have confirmed it"
                now = self._deployment.scheduler.now
                self._deployment.failed(f"at {now:.3f}: {machine.name}, group {state.log.gid}: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Returns]:
    """All returns are looked at meanwhile."""
    returns = Returns(deployment)
    requests: Callable[..., None] = Rejoin.on_request
    adds: Callable[..., None] = ReadRounds.add
    counts: Callable[..., None] = ReadRounds.on_answer

    def on_request(self: Rejoin, peer: str, message: Any) -> None:
        returns.asking = peer
        try:
            requests(self, peer, message)
        finally:
            returns.asking = ""

    def add(self: ReadRounds, callback: Callable[[bool], None], exclude: str | None = None) -> None:
        adds(self, returns.around(self, callback) if returns.asking else callback, exclude)

    def on_answer(self: ReadRounds, peer: str, context: int) -> None:
        if returns.open:
            returns.answers(self, peer, context)
        counts(self, peer, context)

    with (
        patch.object(Rejoin, "on_request", on_request),
        patch.object(ReadRounds, "add", add),
        patch.object(ReadRounds, "on_answer", on_answer),
    ):
        yield returns
