"""Publishes that expect something of what is stored: the last sequence, the last id, the last of their subject."""

from __future__ import annotations

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Chain, Log
from tests.sim.cluster.workload import NOT_FOUND, PASSING, Writers

STREAM = "EXPECT"
REFUSALS = (10070, 10071)


class Expected(Writers):
    name = "expected"
    stream = STREAM
    writers = 3
    judges = (Log, Chain)
    promises = (
        "a message with Nats-Expected-Last-Sequence, -Last-Msg-Id or -Last-Subject-Sequence is stored behind what it"
        " expects, or refused and not stored",
    )

    async def prepare(self) -> None:
        self.kind = self.rng.choice(["Last-Sequence", "Last-Msg-Id", "Last-Subject-Sequence"])
        self.subjects = [f"expect.{name}" for name in "abc"]
        self.log = Log()
        self.chain = Chain()
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["expect.*"], num_replicas=self.rng.choice([1, 3, 3]))

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        last: dict[str, tuple[int, str]] = {}
        async for count in self.turns(6.0):
            subject = self.rng.choice(self.subjects)
            of = subject if self.kind == "Last-Subject-Sequence" else "expect.*"
            try:
                if of not in last:
                    last[of] = await self._last(session, of)
                told = await self._send(session, f"{number}-{count}", subject, last.pop(of))
            except PASSING:
                continue
            if told is not None:
                last[of] = told

    async def _send(self, session: Session, text: str, subject: str, last: tuple[int, str]) -> tuple[int, str] | None:
        """Its sequence and text; None where it was refused. Raises what requests raise."""
        seq, before = last
        by_id = self.kind == "Last-Msg-Id"
        self.log.send(text)
        headers = {"Nats-Msg-Id": text}
        if before or not by_id:  # no id is no expectation
            self.chain.send(text, before if by_id else seq)
            headers[f"Nats-Expected-{self.kind}"] = before if by_id else str(seq)
        try:
            ack = await session.js_publish(subject, text.encode(), headers, seconds=2.0)
        except ApiError as error:
            if error.err_code not in REFUSALS:
                raise
            self.count("refused")
            self.log.refuse(text)
            return None
        self.count("stored")
        self.log.ack(int(ack["seq"]), text, self.now)
        return int(ack["seq"]), text

    async def _last(self, session: Session, subject: str) -> tuple[int, str]:
        try:
            answer = await session.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": subject}, seconds=2.0)
        except ApiError as error:
            if error.err_code == NOT_FOUND:
                return 0, ""
            raise
        return int(answer["message"]["seq"]), self.text_of(answer["message"])

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        texts = {seq: msg.payload.decode() for seq, msg in contents.items()}
        self.stored(self.log, where, contents)
        if self.kind != "Last-Subject-Sequence":
            self.chain.stored(where, sorted(texts.items()))
            return
        for subject in self.subjects:
            own = [(seq, texts[seq]) for seq in sorted(texts) if contents[seq].headers["Nats-Subject"] == subject]
            self.chain.stored(f"{where}, {subject}", own)
