"""The player finds what a server says or does wrong, and makes the history that shows it short."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.model.answers import Answer
from tests.model.consumer import Consumer
from tests.model.consumer_history import ConsumerWriter
from tests.model.history import Step, Writer
from tests.model.player import Differs, Player, shrink
from tests.model.rules import OURS
from tests.model.server import Server
from tests.model.stream import Stream
from tests.model.twin import Lie, Twin

HISTORIES = 60


def spoils(change: Callable[[Stream], None]) -> Lie:
    """A lie about every stream's state."""

    def lie(server: Server, answers: list[Answer]) -> list[Answer]:
        for stream in server.streams.values():
            change(stream)
        return answers

    return lie


def says(change: Callable[[Answer], Answer]) -> Lie:
    return lambda server, answers: [change(one) for one in answers]


def _forgets_oldest(stream: Stream) -> None:
    if len(stream.messages) > 3:
        stream.remove([min(stream.messages)])


def _forgets_headers(stream: Stream) -> None:
    for message in stream.messages.values():
        message.headers = ()


def _loses_batches(stream: Stream) -> None:
    for held in stream.batches.values():
        del held[1:]


LIES: dict[str, Lie] = {
    "a message is lost": spoils(_forgets_oldest),
    "headers are lost": spoils(_forgets_headers),
    "messages of batches are lost": spoils(_loses_batches),
    "ids are forgotten": spoils(lambda stream: stream.ids.clear()),
    "a limit does not count": spoils(lambda stream: stream.config.update(max_msgs=-1)),
    "a limit does not count, secretly": spoils(
        lambda stream: setattr(stream, "config", stream.config | {"max_age": 0})
    ),
    "the last id is forgotten": spoils(lambda stream: setattr(stream, "last_id", "")),
    "an answer is missing": lambda server, answers: answers[:1],
    "an answer comes twice": lambda server, answers: [*answers, answers[-1]],
    "another status": says(lambda one: one._replace(status=one.status.replace("404", "408"))),
    "another error": says(lambda one: one._replace(data=one.data.replace(b"10071", b"10164"))),
    "another order of headers": says(lambda one: one._replace(headers=one.headers[::-1])),
    "another time": says(lambda one: one._replace(data=one.data.replace(b'1Z"', b'2Z"'))),
    "another key": says(lambda one: one._replace(data=one.data.replace(b'"purged"', b'"gone"'))),
    "a number as text": says(lambda one: one._replace(data=one.data.replace(b'"seq": 1', b'"seq": "1"'))),
}


def about_consumers(change: Callable[[Consumer], None]) -> Lie:
    def each(stream: Stream) -> None:
        for consumer in stream.consumers.values():
            change(consumer)

    return spoils(each)


def _acked_below(consumer: Consumer) -> None:
    for seq in [seq for seq in consumer.pending if seq < max(consumer.pending)]:
        del consumer.pending[seq]


def _never_due(consumer: Consumer) -> None:
    for one in consumer.pending.values():
        one.due += 1000.0


CONSUMER_LIES: dict[str, Lie] = {
    "an ack counts for all below": about_consumers(_acked_below),
    "a message does not come again": about_consumers(_never_due),
    "a NAK is not heard": about_consumers(lambda consumer: consumer.again.clear()),
    "deliveries are not counted": about_consumers(
        lambda consumer: consumer.counts.update(dict.fromkeys(consumer.counts, 0))
    ),
    "a filter is forgotten": about_consumers(lambda consumer: consumer.config.update(filter_subject="")),
    "it begins anew": about_consumers(lambda consumer: setattr(consumer, "next_seq", 1)),
    "the floor is left behind": about_consumers(lambda consumer: setattr(consumer, "floor", (0, 0))),
    "another status": says(lambda one: one._replace(status=one.status.replace("No Messages", "Nothing"))),
    "another ack subject": says(lambda one: one._replace(reply=one.reply[:8] if one.reply else "")),
}


async def differs(history: Sequence[Step], lie: Lie | None) -> bool:
    try:
        await Player(Twin(lie), OURS).play(history)
    except Differs:
        return True
    return False


@pytest.mark.parametrize("writer", [Writer, ConsumerWriter])
async def test_an_honest_server_is_never_blamed(writer: type[Writer]) -> None:
    for seed in range(HISTORIES):
        assert not await differs(writer(seed).history(60), None)


@pytest.mark.parametrize(
    ("writer", "name"), [*((Writer, name) for name in LIES), *((ConsumerWriter, name) for name in CONSUMER_LIES)]
)
async def test_a_lie_is_found_and_shown_by_few_requests(writer: type[Writer], name: str) -> None:
    lie = LIES[name] if writer is Writer else CONSUMER_LIES[name]
    for seed in range(HISTORIES):
        history = writer(seed).history(60)
        if await differs(history, lie):
            break
    else:
        raise AssertionError(f"{HISTORIES} histories do not find that {name}")
    short = await shrink(history, lambda some: differs(some, lie))
    assert await differs(short, lie)
    assert len(short) <= 15, short


def test_a_history_is_the_same_for_the_same_seed() -> None:
    assert Writer(7).history(100) == Writer(7).history(100) != Writer(8).history(100)
