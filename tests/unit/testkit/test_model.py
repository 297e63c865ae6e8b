"""The player finds what a server says or does wrong, and makes the history that shows it short."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.model.ack_history import AckWriter
from tests.model.answers import Answer
from tests.model.branches import Branches, Request
from tests.model.bucket_history import BucketWriter
from tests.model.consumer import Consumer
from tests.model.consumer_history import ConsumerWriter
from tests.model.deliver_history import DeliverWriter
from tests.model.directed import Directed
from tests.model.history import SECOND, Step, Writer
from tests.model.player import FRESH, Differs, Disturbed, Player, shrink
from tests.model.read_history import ReadWriter
from tests.model.reading import Unknown
from tests.model.rules import CLUSTERED, OURS, PEER, Rules
from tests.model.server import Server
from tests.model.stream import Stream
from tests.model.stream_history import StreamWriter
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
    "a pushed message is lost": lambda server, answers: [one for one in answers if not one.reply or one.status],
    "a pause is not kept": about_consumers(lambda consumer: setattr(consumer, "paused", False)),
    "another ack subject": says(lambda one: one._replace(reply=one.reply[:8] if one.reply else "")),
}


async def differs(history: Sequence[Step], lie: Lie | None) -> bool:
    try:
        await Player(Twin(lie), OURS).play(history)
    except Differs:
        return True
    except Disturbed:
        return False
    return False


def _sooner(consumer: Consumer) -> None:
    for one in consumer.pending.values():
        one.due -= 0.5


def _without_counts(answer: Answer) -> Answer:
    return answer._replace(headers=tuple(pair for pair in answer.headers if "Pending" not in pair[0]))


def _without_events(server: Server, answers: list[Answer]) -> list[Answer]:
    return [one for one in answers if not one.subject.startswith("$JS.EVENT.")]


EXAM_LIES: dict[str, tuple[type[Writer], Lie]] = {
    "an ack_wait is longer": (
        AckWriter, about_consumers(lambda one: one.config.update(ack_wait=one.config["ack_wait"] + 2 * SECOND)),
    ),
    "an advisory is missing": (AckWriter, _without_events),
    "+NXT brings nothing": (
        AckWriter, lambda server, answers: [] if answers and answers[0].reply and len(answers) == 1 else answers,
    ),
    "a message comes early": (AckWriter, about_consumers(_sooner)),
    "headers_only is forgotten": (DeliverWriter, about_consumers(lambda one: one.config.pop("headers_only", None))),
    "a filter is forgotten": (DeliverWriter, about_consumers(lambda one: one.config.pop("filter_subjects", None))),
    "num_pending is one more": (
        DeliverWriter, says(lambda one: one._replace(data=one.data.replace(b'"num_pending": 0', b'"num_pending": 1'))),
    ),
    "a list is in another order": (
        DeliverWriter, says(lambda one: one._replace(data=one.data.replace(b'["c1", "c2"', b'["c2", "c1"'))),
    ),
    "a page ends too early": (ReadWriter, lambda server, answers: answers[:-2] + answers[-1:]),
    "a page does not tell what is left": (ReadWriter, says(_without_counts)),
    "allow_direct is not heard": (ReadWriter, spoils(lambda stream: stream.config.update(allow_direct=True))),
    "a limit does not count": (StreamWriter, spoils(lambda stream: stream.config.update(max_msgs_per_subject=-1))),
    "a purge keeps nothing": (StreamWriter, spoils(_forgets_oldest)),
    "an id is remembered for long": (StreamWriter, spoils(lambda one: one.config.update(duplicate_window=10**15))),
    "a subject stays as it was": (StreamWriter, spoils(lambda one: one.config.update(subject_transform=None))),
    "nothing is sent on": (StreamWriter, spoils(lambda one: one.config.pop("republish", None))),
    "a sealed stream takes messages": (StreamWriter, spoils(lambda one: one.config.update(sealed=False))),
}  # fmt: skip
"""The differences that each exam alone is to find."""
EXAMS = (AckWriter, DeliverWriter, ReadWriter, StreamWriter)


@pytest.mark.parametrize("name", EXAM_LIES)
async def test_the_history_of_an_exam_finds_a_lie(name: str) -> None:
    writer, lie = EXAM_LIES[name]
    for seed in range(4):
        if await differs(writer(seed).history(120), lie):
            return
    raise AssertionError(f"no history of {writer.__name__} finds that {name}")


@pytest.mark.parametrize("writer", EXAMS)
async def test_every_part_of_an_exam_is_predicted_to_its_end(writer: type[Directed]) -> None:
    for name in writer.PARTS:
        drawn = writer(name)
        history = drawn.begin() + drawn.part(name)
        player = Player(Twin(), OURS)
        await player.play(history)
        asked = sum(not step.wait and not step.listen for step in history)
        assert player.asked >= asked * 0.8, name


@pytest.mark.parametrize("writer", [Writer, ConsumerWriter, BucketWriter, *EXAMS])
async def test_an_honest_server_is_never_blamed(writer: type[Writer]) -> None:
    for seed in range(10 if writer in EXAMS else HISTORIES):
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


CREATE = "$JS.API.STREAM.CREATE.A"
MADE = {"name": "A", "subjects": ["a.>"], "storage": "file", "allow_atomic": True}


def _made(server: Server, **config: object) -> Stream:
    server.ask(CREATE, (), json.dumps(MADE | config).encode(), 0.0)
    return server.streams["A"]


def _staged(server: Server, subject: str, number: int, now: float, *, commit: bool = False) -> dict[str, Any]:
    headers = (("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", str(number)), ("Nats-Batch-Commit", "1"))
    found = server.ask(subject, headers if commit else headers[:2], b"x", now)[0].data
    return found if commit else {}


def test_a_batch_is_stored_when_it_is_committed() -> None:
    server = Server(OURS)
    stream = _made(server, max_age=5 * 10**9, duplicate_window=10**9)
    _staged(server, "a.1", 1, 10.0)
    assert _staged(server, "a.2", 2, 19.0, commit=True)["count"] == 2
    server.pass_time(23.0)
    assert list(stream.messages) == [1, 2]


def test_a_batch_that_gets_no_more_is_forgotten() -> None:
    server = Server(OURS)
    _made(server)
    _staged(server, "a.1", 1, 10.0)
    assert server.deadlines() == [20.0]
    assert _staged(server, "a.1", 2, 20.0, commit=True)["error"]["err_code"] == 10176


def test_a_batch_makes_no_room_by_what_it_replaces() -> None:
    server = Server(OURS)
    stream = _made(server, discard="new", max_msgs=2, max_msgs_per_subject=1)
    for subject in ("a.1", "a.2", "a.1"):
        assert "error" not in server.ask(subject, (), b"x", 1.0)[0].data
    assert list(stream.messages) == [2, 3]
    assert _staged(server, "a.1", 1, 2.0, commit=True)["error"]["err_code"] == 10077


def _consumer(server: Server, naked: Sequence[tuple[int, float]]) -> None:
    """Deliveries of three messages, with NAKs of a second: (sequence, when)."""
    _made(server)
    config = {"stream_name": "A", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    server.ask("$JS.API.CONSUMER.CREATE.A.c", (), json.dumps(config).encode(), 0.0)
    for _ in range(3):
        server.ask("a.1", (), b"x", 1.0)
    server.ask("$JS.API.CONSUMER.MSG.NEXT.A.c", (), b'{"batch": 3, "no_wait": true}', 2.0)
    for seq, at in naked:
        server.ask(f"$JS.ACK.A.c.1.{seq}.{seq}.0.0", (), b"-NAK 1s", at)


def _next(server: Server) -> list[str]:
    found = server.ask("$JS.API.CONSUMER.MSG.NEXT.A.c", (), b'{"batch": 3, "no_wait": true}', 10.0)
    return [one.reply[5] for one in found if one.reply]


def test_what_falls_due_joins_the_end_of_the_queue() -> None:
    server = Server(OURS)
    _consumer(server, [(3, 2.0), (1, 4.0)])
    assert _next(server) == ["3", "1"]


def test_nobody_knows_the_order_of_what_falls_due_together() -> None:
    server = Server(OURS)
    _consumer(server, [(3, 2.0), (1, 2.1)])
    with pytest.raises(Unknown):
        _next(server)


@pytest.mark.parametrize(("rules", "at_once"), [(OURS, []), (PEER, ["2"])])
@pytest.mark.parametrize("word", [b"-NAK 30s", b"+WPI"])
def test_a_message_that_was_naked_is_put_off(rules: Rules, at_once: list[str], word: bytes) -> None:
    server = Server(rules)
    _consumer(server, [])
    for said in (b"-NAK", word):
        server.ask("$JS.ACK.A.c.1.2.2.0.0", (), said, 2.0)
    assert _next(server) == at_once


async def test_a_waiting_pull_comes_when_each_replica_has_all_messages() -> None:
    history = [
        Step(CREATE, MADE),
        Step(
            "$JS.API.CONSUMER.CREATE.A.c",
            {"stream_name": "A", "config": {"durable_name": "c", "ack_policy": "explicit"}},
        ),
        Step("a.1", b"x"),
        Step("$JS.API.CONSUMER.MSG.NEXT.A.c", {"batch": 1, "expires": 60_000_000}),
    ]
    took = []
    for rules in (OURS, CLUSTERED):
        twin = Twin()
        began = twin.now()
        await Player(twin, rules).play(history)
        took.append(twin.now() - began)
    assert took[0] < FRESH < took[1]


def test_a_read_without_an_answer_tells_nothing_of_what_happened() -> None:
    """Which message is at a time is not known in the world in which there is one."""
    branches = Branches(OURS)
    branches.worlds[0].server.ask(CREATE, (), json.dumps(MADE | {"allow_direct": True}).encode(), 0.0)
    branches.lost(Request("a.1", (), b"x"))
    at = Request("$JS.API.DIRECT.GET.A", (), b'{"start_time": "2020-01-01T00:00:00Z"}')
    assert branches.answered(at, [Answer("503")], 1.0) == []
    stored = b'{"stream": "A", "seq": 1}'
    assert branches.answered(Request("a.2", (), b"y"), [Answer(data=stored)], 2.0) == []
