"""Order per key with stock clients in other languages, nats.go and nats.java, in each of their ways to get messages.

Three members share the keys, each connected to another server. Messages are published in rounds, and members come and
go between them; so in each round each key is at one member, and at the same one as before if that stayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pytest

from testkit.harness import ProcessCluster, eventually
from tests.interop.keyed import CONSUMER, Keyed, keyed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.long, pytest.mark.thorough]

KEYS = 60
ROUND = 6
"""Messages of each key in a round."""

Commands = Mapping[str, Sequence[str]]
GO = (("go", "consume"), ("go", "messages"), ("go", "fetch"))
JAVA = (("java", "consume"), ("java", "iterate"), ("java", "fetch"))
BOTH = (("go", "fetch"), ("java", "consume"), ("java", "fetch"))


@pytest.fixture
def commands(go_suite: list[str], java_member: list[str]) -> dict[str, list[str]]:
    return {"go": go_suite, "java": java_member}


class Judge:
    """The lines that members print, held against what was promised."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Messages of a key that may be out at a time."""
        self.wrong: list[str] = []
        self.got = 0
        self.refused = 0
        self.keys: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        """Round -> key -> how many messages of it each member got."""
        self._out: dict[str, list[int]] = defaultdict(list)
        """Messages of each key that a member has, or refused and will get again."""
        self._first: dict[str, int] = defaultdict(int)
        """The last message of each key that came for the first time."""
        self._key_of: dict[int, str] = {}

    def hears(self, name: str, round_: str, line: str) -> None:
        """One line of the member `name`."""
        what, number, *rest = line.split()
        seq = int(number)
        if what != "got":
            if what == "ack" and seq in (out := self._out[self._key_of[seq]]):
                out.remove(seq)
            self.refused += what == "nak"
            return
        key = rest[0]
        self.got += 1
        self.keys[round_][key][name] += 1
        self._key_of[seq] = key
        out = self._out[key]
        if seq not in out:
            out.append(seq)
        if len(out) > self.most:
            self.wrong.append(f"{out} of {key} are out")
        if rest[1] == "1":
            if seq <= self._first[key]:
                self.wrong.append(f"{seq} of {key} came first after {self._first[key]}")
            self._first[key] = seq

    def owners(self, round_: str) -> dict[str, str]:
        """Key -> the member that got all its messages in the round; else it is wrong."""
        several = {key: dict(names) for key, names in self.keys[round_].items() if len(names) > 1}
        if several:
            self.wrong.append(f"in round {round_} keys came to several members: {several}")
        return {key: next(iter(names)) for key, names in self.keys[round_].items()}


class Member:
    """A process with one client, which is a member."""

    def __init__(self, name: str, command: Sequence[str], words: Sequence[str], judge: Judge) -> None:
        self.name = name
        self._words = [*command, "member", *words]
        self._judge = judge
        self.round = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.tail: list[str] = []

    async def begin(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(("got ", "ack ", "nak ")):
                self._judge.hears(self.name, self.round, line)
            else:
                self.tail.append(line)

    async def end(self) -> None:
        """Let it give no new messages to its workers, and end."""
        assert self._process is not None and self._process.stdin is not None and self._reading is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 40)
        await self._reading
        assert self._process.returncode == 0 and self.tail[-1:] == ["ended"], self.tail[-20:]

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


class Rounds:
    """The members that are there now, and rounds of messages for them."""

    def __init__(self, consumer: Keyed, judge: Judge) -> None:
        self.consumer = consumer
        self.judge = judge
        self.members: list[Member] = []

    async def join(self, member: Member) -> None:
        await member.begin()
        self.members.append(member)
        await self.consumer.until_members(len(self.members))

    async def leave(self) -> Member:
        member = self.members.pop(0)
        await member.end()
        await self.consumer.until_members(len(self.members))
        return member

    async def play(self, name: str) -> dict[str, str]:
        """Publish a round, wait until all is acked; return who got each key."""
        for member in self.members:
            member.round = name
        for _ in range(ROUND):
            publishes = (self.consumer.js.publish(f"{self.consumer.stream}.{key}", b"m") for key in range(KEYS))
            await asyncio.gather(*publishes)
        await eventually(self.consumer.is_done, 60, "all is delivered and acked, and the counts say so")
        owners = self.judge.owners(name)
        assert not self.judge.wrong, self.judge.wrong[:5]
        assert len(owners) == KEYS and set(owners.values()) == {one.name for one in self.members}, Counter(
            owners.values()
        )
        return owners


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("ways", [GO, JAVA, BOTH], ids=["go", "java", "both"])
async def test_each_key_is_at_one_client_in_order_while_none_comes_or_goes(
    shared: ProcessCluster, server: str, commands: Commands, ways: Sequence[tuple[str, str]], most: int
) -> None:
    stream = f"{'-'.join(language for language, _ in ways)}-{most}"
    async with contextlib.AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(keyed(shared, server, stream))
        made = [*commands[ways[0][0]], "consumer", shared[0].url, stream, CONSUMER, str(most)]
        process = await asyncio.create_subprocess_exec(*made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        judge = Judge(most)
        rounds = Rounds(consumer, judge)

        def member(name: str, at: int) -> Member:
            language, way = ways[at]
            one = Member(name, commands[language], [shared[at].url, stream, CONSUMER, way], judge)
            stack.push_async_callback(one.kill)
            return one

        for at in range(3):
            await rounds.join(member(f"{at} {ways[at][1]}", at))
        first = await rounds.play("first")
        assert await rounds.play("second") == first, "nothing moves meanwhile"
        delivered = (await consumer.answer())["delivered"]["consumer_seq"]
        assert delivered == judge.got == 2 * ROUND * KEYS + judge.refused and judge.refused, "each counts once"
        gone = await rounds.leave()
        third = await rounds.play("one went")
        moved = {key: (name, third[key]) for key, name in first.items() if name not in (gone.name, third[key])}
        assert not moved, "others keep their keys"
        back = member("back", 0)
        await rounds.join(back)
        fourth = await rounds.play("one came")
        moved = {key: (name, fourth[key]) for key, name in third.items() if fourth[key] not in (name, back.name)}
        assert not moved, "who comes takes its share only"
        for one in rounds.members:
            await one.end()
        print(f"{judge.got} deliveries, {judge.refused} refused")


def test_the_judge_can_find_something() -> None:
    judge = Judge(1)
    for line in ("got 1 s.a 1", "got 3 s.b 1", "ack 1", "got 2 s.a 1"):
        judge.hears("one", "first", line)
    assert not judge.wrong and judge.owners("first") == {"s.a": "one", "s.b": "one"}
    judge.hears("one", "first", "nak 2")
    judge.hears("one", "first", "got 4 s.a 1")
    assert judge.wrong.pop() == "[2, 4] of s.a are out"
    judge.hears("one", "first", "ack 4")
    judge.hears("one", "first", "ack 2")
    judge.hears("one", "first", "got 3 s.b 1")
    assert judge.wrong.pop() == "3 of s.b came first after 3"
    judge.hears("two", "first", "got 5 s.a 1")
    judge.owners("first")
    assert judge.wrong == ["in round first keys came to several members: {'s.a': {'one': 3, 'two': 1}}"]
