"""Streams with dead letters, and what `jetcluster replay` asks them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from jetcluster.cli.replay import LetterReplay
from jetcluster.client.reply import Reply, make_reply
from jetcluster.errors import ApiError
from jetcluster.model.times import parse_rfc3339, rfc3339
from jetcluster.protocol import headers as header_block

NOW = 1_800_000_000 * 10**9
HOUR = 3600 * 10**9
DAY = 24 * HOUR
Pairs = list[tuple[bytes, bytes]]


class Streams:
    """DEAD with letters, and WORK that takes `work.>`, is `DAY` old and knows ids for `window`."""

    def __init__(self, window: int = HOUR, *, direct: bool = False) -> None:
        self.window = window
        self.direct = direct
        self.info = {"go": "python 3"}
        self.api_prefix = "$JS.API."
        self.now = NOW
        self.letters: dict[int, tuple[int, bytes]] = {}
        self.last_letter = 0
        self.work: dict[int, tuple[int, str, bytes, Pairs]] = {}
        self.last = 0
        self.names = ["WORK"]
        self.created = NOW - DAY
        self.interrupted = False
        self.asked: list[str] = []

    def add(self, seq: int, subject: str = "work.a", age: int = 0, *more: tuple[bytes, bytes]) -> None:
        pairs = [*more, (b"Nats-Msg-Id", b"dl:%d" % seq), (b"A", b"1"), (b"Nats-Dead-Letter-Stream", b"WORK")]
        pairs += [(b"Nats-Dead-Letter-Subject", subject.encode())] if subject else []
        self.put(seq, age, pairs)

    def put(self, seq: int, age: int, pairs: Pairs) -> None:
        self.letters[seq] = self.now - age, header_block.build(pairs)
        self.last_letter = max(self.last_letter, seq)

    def store(self, subject: str = "work.a", age: int = 0, headers: Pairs | None = None) -> int:
        self.last += 1
        self.work[self.last] = self.now - age, subject, b"p", headers or []
        return self.last

    def api(self, subject: str, body: Any = None, **_: Any) -> dict[str, Any]:
        self.asked.append(subject)
        if subject == "STREAM.NAMES":
            return {"streams": self.names}
        if subject == "STREAM.INFO.DEAD":
            return {"state": {"last_seq": self.last_letter}}
        if subject == "STREAM.INFO.WORK":
            first = min(self.work, default=self.last + 1)
            at = rfc3339(self.work[first][0]) if self.work else "0001-01-01T00:00:00Z"
            state = {"first_seq": first, "last_seq": self.last, "messages": len(self.work), "first_ts": at}
            config = {"duplicate_window": self.window, "allow_direct": self.direct}
            return {"config": config, "state": state, "created": rfc3339(self.created), "ts": rfc3339(self.now)}
        if subject == "STREAM.MSG.DELETE.DEAD":
            if self.interrupted:
                raise KeyboardInterrupt
            del self.letters[body["seq"]]
            return {"success": True}
        if subject == "STREAM.MSG.GET.WORK":
            for seq, at, block in self.found(body):
                return message(seq, at, block)
        elif subject == "STREAM.MSG.GET.DEAD":
            for seq, (at, block) in sorted(self.letters.items()):
                if seq == body["seq"] or ("next_by_subj" in body and seq > body["seq"]):
                    return message(seq, at, block)
        raise ApiError(404, 10037, "no message found")

    def found(self, body: Any) -> Iterator[tuple[int, int, bytes]]:
        """The messages of WORK from `seq` or `start_time` on."""
        since = parse_rfc3339(body["start_time"]) if "start_time" in body else 0
        for seq, (at, subject, _payload, pairs) in sorted(self.work.items()):
            if seq >= body.get("seq", 1) and at >= since and body["next_by_subj"] in (">", subject):
                yield seq, at, header_block.build(pairs)

    def gather(self, subject: str, payload: bytes, headers: bytes) -> Any:
        assert subject == "$JS.API.DIRECT_LEADER.GET.WORK" and b"linearizable" in headers
        self.asked.append(subject)
        body = json.loads(payload)
        found = list(self.found(body))
        some = found[: body["batch"]]
        frames = [(header_block.set_header(block, b"Nats-Sequence", b"%d" % seq), b"p") for seq, _, block in some]
        end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\n\r\n" % (len(found) - len(some))
        end = make_reply(end if found else b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")
        return SimpleNamespace(wait=lambda: end, frames=lambda: frames)

    def request(self, subject: str, payload: bytes, headers: Pairs) -> Reply:
        seq = self.store(subject, 0, headers)
        return Reply(0, "", b"", json.dumps({"stream": "WORK", "seq": seq}).encode())

    def sent(self) -> list[tuple[str, bytes, Pairs]]:
        return [(subject, payload, headers) for _, subject, payload, headers in self.work.values()]

    def replay(self, subject: str = ">", seqs: tuple[int, ...] = (), limit: int = 0, **how: Any) -> LetterReplay:
        made = LetterReplay(self, "DEAD", **how)  # type: ignore[arg-type]
        made.run(made.letters(subject, seqs), limit)
        return made


def message(seq: int, at: int, block: bytes) -> dict[str, Any]:
    hdrs = base64.b64encode(block).decode()
    return {"message": {"seq": seq, "time": rfc3339(at), "hdrs": hdrs, "data": base64.b64encode(b"p").decode()}}
