"""The player finds what a server says or does wrong, and makes the history that shows it short."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.model.answers import Answer
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


async def differs(history: Sequence[Step], lie: Lie | None) -> bool:
    try:
        await Player(Twin(lie), OURS).play(history)
    except Differs:
        return True
    return False


async def test_an_honest_server_is_never_blamed() -> None:
    for seed in range(HISTORIES):
        assert not await differs(Writer(seed).history(60), None)


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_is_found_and_shown_by_few_requests(name: str) -> None:
    for seed in range(HISTORIES):
        history = Writer(seed).history(60)
        if await differs(history, LIES[name]):
            break
    else:
        raise AssertionError(f"{HISTORIES} histories do not find that {name}")
    short = await shrink(history, lambda some: differs(some, LIES[name]))
    assert await differs(short, LIES[name])
    assert len(short) <= 15, short


def test_a_history_is_the_same_for_the_same_seed() -> None:
    assert Writer(7).history(100) == Writer(7).history(100) != Writer(8).history(100)
