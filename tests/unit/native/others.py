"""Random input of the loops beside publishes: Direct Gets, acks, messages to clients and between nodes. The tests of
each loop draw with hypothesis, which finds more in a few hundred examples; these are for millions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from jetcluster import native
from jetcluster.consumer.owner.ack_subject import Renderer, prefix
from jetcluster.mesh.frames import FrameError, decode_msgs, encode_msgs
from jetcluster.protocol.bus import Outgoing
from jetcluster.protocol.subjects import is_literal
from jetcluster.server.accounts.subscription import frames_rendered, rendered
from jetcluster.store.api import Columns
from jetcluster.store.batch import Batch
from jetcluster.stream.lead.answers import PubAcks
from jetcluster.stream.lead.ingest import split_bare
from jetcluster.stream.ports import PublishResult
from jetcluster.stream.read.direct_get import frames_of, message_head
from jetcluster.stream.read.get_request import GetRequest, MalformedRequest
from testkit.native import python_alone
from tests.unit.native.takers import acks_taken, answers_taken

HALF = 1 << 63
NAMES = [b"a", b"a.b", b"orders.eu.1", b"x" * 300]
REPLIES = [b"", b"", b"_INBOX.a.1", b"r"]
BLOCKS = [b"", b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"]
INBOXES = [
    b"_INBOX.a.1",
    b"_INBOX.a.22",
    b"_INBOX.a.",
    b"_INBOX.a.x.y",
    b"_INBOX.b.1",
    b"plain.a",
    b"none",
    b"_INBOX.a",
]
TOKENS = [
    b"",
    b"x",
    b"+5",
    b"5_0",
    b"007",
    b" 5",
    b"9" * 18,
    b"9" * 19,
    b"9" * 40,
    b"5x",
    b"0",
    b"-1",
    b"%d" % (2 * HALF + 5),
    b"21",
    b"24",
]
TOKENS.append(b"%d" % (2 * HALF + 5))  # 5 where only 64 bits are kept
PLAIN_WORDS = [b"", b"+ACK", b"+OK"]
WORDS = [b"-NAK", b"+WPI", b"+TERM", b"+NXT", b"+ACKx", b"+O", b"+OKx", b"-NAK {}", b"x", b"+KO", b"-ACK", b"+ok"]
SPARE = [b"", b'"', b"0", b"}", b"{", b"\x00", b"9", b":", b" ", b"\\", b"\x7f", b"\xe9", b"\t", b","]
DAMAGE = [0, 1, 2, 3, 255]
Found = tuple[int, str]
"""The number of messages compared, and the first difference ("" without one)."""


def both(run: Callable[[], Any]) -> str:
    """The difference between the results of compiled code and of Python, "" without one."""
    compiled = run()
    with python_alone():
        python = run()
    return "" if compiled == python else f"compiled {str(compiled)[:400]}, Python {str(python)[:400]}"


def number(rng: random.Random) -> int:
    return rng.choice([rng.randrange(-3, 12), rng.randrange(1 << rng.randrange(1, 66)), 10**18 - 1, 10**18, HALF - 1])


def moment(rng: random.Random) -> int:
    """Nanoseconds, with the ends of seconds, days and what the format leaves out."""
    return rng.choice([
        rng.randrange(-HALF, HALF), rng.randrange(-(10**9), 4 * 10**9) * 10**9, rng.randrange(4 * 10**15) * 1000,
        rng.randrange(-70_000, 92_000) * 86_400 * 10**9 + rng.randrange(-1, 2), 0,
    ])  # fmt: skip


def request(rng: random.Random) -> bytes:
    """A Direct Get as a client might write it; some have a byte too much, too little or changed."""
    colon, blank = rng.choice([b":", b": ", b" :", b":\n", b":  "]), rng.choice([b"", b"", b" ", b"\t"])
    value = rng.choice([
        b"%d" % number(rng), b'"%b"' % bytes(rng.choice(b'ab.*>"\\ \x7f~!#') for _ in range(rng.randrange(6))),
        b'"a.b"', b'"orders.eu-1_x"', b"0%d" % number(rng), b"5.0", b"1e3", b"null",
    ])  # fmt: skip
    name = rng.choice([b"seq", b"seq", b"last_by_subj", b"last_by_subj", b"Seq", b"batch", b"next_by_subj"])
    raw = bytearray(b"{" + blank + b'"' + name + b'"' + colon + value + blank + b"}" + rng.choice([b"", b"", b" "]))
    for _ in range(rng.choice([0, 0, 1, 2])):
        place = rng.randrange(len(raw) + 1)
        raw[place : place + rng.randrange(3)] = rng.choice(SPARE)
    return bytes(raw)


def is_read_alike(payload: bytes, found: int | bytes) -> bool:
    """True when Python reads the request as `plain_get` did."""
    try:
        asked = GetRequest.decode(payload)
    except MalformedRequest:
        return False
    given = ["seq"] if isinstance(found, int) else ["last_by_subj"]
    is_plain = not asked.unknown and asked.selects and not asked.conflicts and asked.given == given
    return is_plain and found == (asked.seq or asked.last_by_subj) and (isinstance(found, int) or is_literal(found))


def gets(rng: random.Random, count: int = 40) -> Found:
    assert native.plain_get is not None
    for _ in range(count):
        payload = request(rng)
        found = native.plain_get(payload)
        if found is None:
            continue
        if not is_read_alike(payload, found):
            return count, f"plain_get({payload!r}) is {found!r}"
    return count, ""


def heads(rng: random.Random, count: int = 40) -> Found:
    assert native.message_head is not None
    for _ in range(count):
        start, subject = (
            rng.choice([b"", b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: "]),
            rng.randbytes(rng.randrange(300)),
        )
        numbers = (
            rng.randrange(1 << rng.randrange(1, 65)),
            moment(rng),
            rng.randrange(-1, 1 << 40),
            rng.choice([rng.randrange(-1, 99), rng.randrange(1 << rng.randrange(1, 65))]),
        )
        if native.message_head(start, subject, *numbers) != message_head(start, subject, *numbers):
            return count, f"message_head({start!r}, {subject!r}, *{numbers})"
    return count, ""


def batches(rng: random.Random, count: int = 20) -> Found:
    """Messages of a batch, also damaged: then no byte beyond it is read."""
    assert native.message_of is not None
    some = [(rng.choice(NAMES), rng.choice(BLOCKS), rng.randbytes(rng.choice([0, 3, 3]))) for _ in range(count)]
    raw = Batch.encode(*([message[part] for message in some] for part in range(3)))
    found = [native.message_of(raw, 0, i) for i in range(count)]
    if found != some:
        return count, f"message_of({raw!r}): {found}"
    damaged = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(min(len(raw), 200))] = rng.choice([*DAMAGE, rng.randrange(256)])
    end = rng.choice([len(raw), rng.randrange(len(raw) + 1)])
    for i in range(count):
        one = native.message_of(bytes(damaged[:end]), 0, i)
        if one is not None and not all(part in damaged[:end] for part in one):
            return count, f"message_of({bytes(damaged[:end])!r}, 0, {i}): {one}"
    return count, ""


def pages(rng: random.Random, count: int = 20) -> Found:
    """The frames of a page of stored messages."""

    def start_of(block: bytes) -> bytes:
        return b"start " + block

    def row() -> tuple[int, int, bytes, bytes, bytes]:
        seq = rng.randrange(1 << rng.randrange(1, 65))
        return seq, moment(rng), rng.choice(NAMES), rng.choice(BLOCKS), rng.randbytes(9)

    columns = Columns(*map(list, zip(*(row() for _ in range(count)), strict=True)))
    rest = rng.random() < 0.2, rng.randrange(-1, 99), rng.randrange(2 * HALF), rng.choice([1, 2000, 1 << 40])
    shows, lead = rng.random() < 0.7, rng.choice([b"MSG a 1 ", b"MSG a.b 123456 "])

    def whole() -> object:
        frames, *numbers = (native.frames_of or frames_of)(columns, start_of, *rest)
        pieces, size = frames_rendered(lead, frames, shows)
        return b"".join(pieces), size, numbers

    return count, both(whole)


def ack(rng: random.Random) -> Outgoing:
    if rng.random() < 0.8:
        seq = rng.randrange(1, 26)
        subject = b"$JS.ACK.S.C.1.%d.%d.17.0" % (seq, seq)
    else:
        subject = b".".join([b"$JS.ACK.S.C", *(rng.choice([*TOKENS, b"3", b"4"]) for _ in range(5))])
    word = rng.choice(PLAIN_WORDS) if rng.random() < 0.9 else rng.choice(WORDS)
    return subject, rng.choice([b"", b"", b"_INBOX.a.1"]), b"", word


def acks(rng: random.Random, count: int = 30) -> Found:
    messages = [ack(rng) for _ in range(count)]
    compiled, python = acks_taken(messages, together=True), acks_taken(messages, together=False)
    return count, "" if compiled == python else f"acks {messages}: together {compiled}, one by one {python}"


def ack_subjects(rng: random.Random, count: int = 10) -> Found:
    def number() -> int:
        return rng.choice([rng.randrange(-HALF, HALF), rng.randrange(99), -HALF, HALF - 1, -1])

    def sequence() -> int:
        return rng.choice([rng.randrange(2 * HALF), rng.randrange(99), 2 * HALF - 1, HALF])

    rows = [[make() for _ in range(count)] for make in (sequence, sequence, number, number)]
    stream = rng.choice([b"S", b"a%d", b"x" * 300])
    columns = Columns(rows[0], rows[2], [b"s"] * count, [b""] * count, [b"p"] * count)
    return count, both(lambda: Renderer(prefix(stream, b"C")).first(columns, rows[1], rows[3]))


def some_messages(rng: random.Random) -> list[Outgoing]:
    def payload() -> bytes:
        return rng.choice([b"", b"x", b"y" * 9, b"z" * 1000, rng.randbytes(rng.randrange(120))])

    def block() -> bytes:
        return rng.choice(BLOCKS)

    names, same = rng.sample(NAMES, rng.randrange(1, 4)), rng.random() < 0.3
    return [
        (rng.choice(names), rng.choice(REPLIES[: 2 if same else 4]), b"" if same else block(), payload())
        for _ in range(rng.randrange(1, 40))
    ]


def frames(rng: random.Random) -> Found:
    messages, mid, shows = some_messages(rng), rng.choice([b" 1 ", b" 123456 "]), rng.random() < 0.5

    def whole() -> object:
        pieces, *sizes = rendered(mid, messages, shows)
        return b"".join(pieces), sizes

    return len(messages), both(whole)


def decoded(buffer: bytes, start: int, end: int) -> object:
    try:
        return decode_msgs(buffer, start, end)
    except FrameError as error:
        return str(error)


def columns(rng: random.Random) -> Found:
    """Between two nodes, also damaged on the way."""
    messages = some_messages(rng)
    differs = both(lambda: encode_msgs("ACC", messages))
    raw = bytearray(encode_msgs("ACC", messages))
    if not differs and decoded(bytes(raw), 5, len(raw)) != ("ACC", messages):
        differs = f"{messages} come back as {decoded(bytes(raw), 5, len(raw))}"
    end = len(raw)
    for _ in range(rng.randrange(4)):
        raw[rng.randrange(5, min(len(raw), 5 + rng.choice([40, 10_000])))] = rng.choice([*DAMAGE, rng.randrange(256)])
    if rng.random() < 0.3:
        end = rng.randrange(5, len(raw) + 1)
    buffer = bytes(raw) + rng.randbytes(3)
    return len(messages), differs or both(lambda: decoded(buffer, 5, end))


def answers(rng: random.Random) -> Found:
    some = [(rng.choice(INBOXES), rng.randbytes(rng.choice([0, 1, 9, 1000]))) for _ in range(rng.randrange(1, 30))]
    return len(some), both(lambda: answers_taken(some))


def splits(rng: random.Random) -> Found:
    """The publishes that a stream's leader takes together."""
    assert native.split_bare is not None
    messages, most = some_messages(rng), rng.randrange(1, 50)
    most_bytes, mark = rng.choice([299, 300, 1000]), rng.choice([b".$FI", b"r", b"_INBOX.a.12", b"1"])
    compiled, python = native.split_bare(messages, most, most_bytes, mark), split_bare(messages, most, most_bytes, mark)
    same = compiled == (None if python is None else (*map(list, python[:3]), python[3]))
    return len(messages), "" if same else f"split_bare({messages}, {most}, {most_bytes}, {mark!r})"


def pub_acks(rng: random.Random) -> Found:
    some = [rng.choice([*INBOXES, b""]) for _ in range(rng.randrange(1, 30))]
    first = rng.choice([rng.randrange(1, 200), rng.randrange(1, 2 * HALF - 30)])
    acks = PubAcks(rng.choice(["S", "a%d", 'x"y', "x" * 300]), rng.choice([None, "D%"]))
    return len(some), both(lambda: acks.render(PublishResult(first, len(some), None), some))


KINDS: dict[str, Callable[[random.Random], Found]] = {
    "Direct Gets": gets, "header blocks": heads, "acks": acks, "ack subjects": ack_subjects, "frames": frames,
    "columns": columns, "answers": answers, "publishes to a leader": splits,
    "acks of publishes": pub_acks, "batches": batches, "pages": pages,
}  # fmt: skip
