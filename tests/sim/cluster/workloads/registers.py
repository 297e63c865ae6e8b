"""A key-value bucket whose keys are registers: compare-and-set by revision, reads at the leader and at any replica."""

from __future__ import annotations

import asyncio

from testkit.sim.session import ApiError, Msg
from tests.sim.cluster.judges import Registers
from tests.sim.cluster.workload import NOT_FOUND, PASSING, Workload, together

STREAM = "KV_sim"
CLIENTS = 3
READERS = 3
"""Connections that only read at the leader, so often that it has a lease, and that one that was deposed is asked."""
KEYS = "abc"
WRONG_LAST = 10071


class RegistersWorkload(Workload):
    name = "registers"
    weight = 4
    judges = (Registers,)
    promises = (
        "MSG.GET finds everything that was acknowledged or read before it was asked (linearizable)",
        "compare-and-set by revision: of two that expect the same revision one is stored",
        "a Direct Get of the connection whose write was acknowledged finds that write, or an error",
        "a Direct Get of several keys (multi_last) finds the own writes of its connection, as of one moment",
    )

    async def prepare(self) -> None:
        self.judge = Registers()
        self.expected: dict[str, int] = {}
        """The revision that a compare-and-set names, by its text."""
        self.revisions: dict[str, int] = {}
        """Revisions of texts whose compare-and-set was acknowledged."""
        self.won: dict[tuple[str, int], str] = {}
        admin = await self.session("admin")
        # A key is never written often enough for its oldest revisions to go.
        await self.create(
            admin, STREAM, subjects=["$KV.sim.>"], max_msgs_per_subject=5000, allow_rollup_hdrs=True,
            discard="new", num_replicas=self.rng.choice([1, 3, 3, 3])
        )  # fmt: skip

    async def work(self) -> None:
        readers = [_Client(self, number).read() for number in range(CLIENTS, CLIENTS + READERS)]
        await together(*(_Client(self, number).run() for number in range(CLIENTS)), *readers)

    async def check(self) -> None:
        await self.everywhere(STREAM, max(map(self.judge.newest, KEYS)), self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        for key in KEYS:
            own = {
                seq: msg.payload.decode()
                for seq, msg in contents.items()
                if msg.headers["Nats-Subject"] == f"$KV.sim.{key}"
            }
            self.judge.stored(where, key, own)
            before = 0
            for revision in sorted(own):
                expected = self.expected.get(own[revision], before)
                self.require(expected == before, f"{where}: {key}@{revision} follows {before}, and not {expected}")
                before = revision

    def won_by(self, key: str, expected: int, text: str) -> None:
        other = self.won.setdefault((key, expected), text)
        self.require(other == text, f"{other} and {text} were both stored behind {key}@{expected}")


class _Client:
    """One connection, and what it was answered."""

    def __init__(self, workload: RegistersWorkload, number: int) -> None:
        self.workload = workload
        self.number = number
        self.rng = workload.rng
        self.own: dict[str, int] = {}
        self.connects = 0
        self.known: dict[str, int] = {}
        self.written = 0

    async def run(self) -> None:
        workload = self.workload
        session = self.session = await workload.session(f"c{self.number}")
        acts = [self._set, self._set, self._get, self._direct, self._direct, self._multi]
        while not workload.stopping:
            await asyncio.sleep(self.rng.expovariate(8.0))
            if session.connects != self.connects:
                self.own, self.connects = {}, session.connects
            try:
                await self.rng.choice(acts)(self.rng.choice(KEYS))
            except PASSING:
                workload.count("unknown")

    async def read(self) -> None:
        """Reads only."""
        workload = self.workload
        self.session = await workload.session(f"c{self.number}")
        while not workload.stopping:
            await asyncio.sleep(self.rng.expovariate(25.0))
            try:
                await self._get(self.rng.choice(KEYS))
            except PASSING:
                workload.count("unknown")

    async def _set(self, key: str) -> None:
        workload, connects = self.workload, self.session.connects
        self.written += 1
        expected, text = self.known.get(key, 0), f"{self.number}-{self.written}"
        workload.expected[text] = expected
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        try:
            ack = await self.session.js_publish(f"$KV.sim.{key}", text.encode(), headers, seconds=2.0)
        except ApiError as error:
            if error.err_code == WRONG_LAST:
                workload.count("refused")
                await self._get(key)
            return
        revision = int(ack["seq"])
        workload.count("set")
        workload.won_by(key, expected, text)
        workload.judge.learn(key, revision, text)
        self.known[key] = revision
        if self.session.connects == connects:
            self.own[key] = revision

    async def _get(self, key: str) -> None:
        workload, newest = self.workload, self.workload.judge.newest(key)
        try:
            answer = await self.session.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": f"$KV.sim.{key}"}, seconds=2.0)
        except ApiError as error:
            if error.err_code == NOT_FOUND:
                workload.judge.read(key, newest, 0, "")
            return
        workload.count("read")
        revision = self.known[key] = int(answer["message"]["seq"])
        workload.judge.read(key, newest, revision, workload.text_of(answer["message"]))

    async def _direct(self, key: str) -> None:
        workload, own, connects = self.workload, self.own.get(key, 0), self.session.connects
        msg = await self.session.request(f"$JS.API.DIRECT.GET.{STREAM}.$KV.sim.{key}", b"", seconds=5.0)
        if self.session.connects != connects or msg.status[:3] not in ("", "404"):
            return
        workload.count("read directly")
        revision = int(msg.headers.get("Nats-Sequence", "0"))
        workload.judge.read_own(key, own, revision)
        if revision:
            workload.judge.learn(key, revision, msg.payload.decode())

    async def _multi(self, key: str) -> None:
        workload, own, connects = self.workload, dict(self.own), self.session.connects
        found = await workload.direct(self.session, STREAM, {"multi_last": ["$KV.sim.>"], "batch": 100})
        if self.session.connects != connects:
            return
        workload.count("read all")
        revisions = {msg.headers["Nats-Subject"].rpartition(".")[2]: int(msg.headers["Nats-Sequence"]) for msg in found}
        for one in KEYS:
            workload.judge.read_own(one, own.get(one, 0), revisions.get(one, 0))
        for msg in found:
            name = msg.headers["Nats-Subject"].rpartition(".")[2]
            workload.judge.learn(name, revisions[name], msg.payload.decode())
