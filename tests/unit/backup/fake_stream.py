"""A scripted server of one stream: STREAM.INFO, Direct Gets, single gets and snapshots, each as the test bends it."""

from __future__ import annotations

import base64
import json
from typing import Any

from jetcluster.backup.segment import StoredMessage
from jetcluster.model.times import rfc3339
from jetcluster.protocol import s2, stream_archive
from tests.unit.client.fake_server import hmsg, msg

PREFIX = b"$JS.API."


def message(seq: int) -> StoredMessage:
    block = b"NATS/1.0\r\nNats-Stream: mine\r\nA: %d\r\n\r\n" % seq if seq % 2 else b""
    return StoredMessage(seq, 1_800_000_000_000_000_001 + seq, b"s.%d" % seq, block, b"m%d" % seq)


class FakeServer:
    """`leader` has the stream; the replica that answers Direct Gets has `replica`."""

    def __init__(self, seqs: list[int]) -> None:
        self.leader = {seq: message(seq) for seq in seqs}
        self.replica = dict(self.leader)
        self.last = max(seqs, default=0)
        self.direct = True
        self.answering = b"S"
        self.batches = self.singles = 0
        self.consumers: dict[str, dict[str, Any]] = {}
        self.format = stream_archive.MAGIC
        self.ended: bytes = b""
        self.list_deleted = True
        self.user: dict[str, str] | None = {"user": "u", "account": "APP"}
        self.names = [f"S{number}" for number in range(5)]
        self.silent: set[str] = set()
        """Streams that do not answer a list."""
        self.failures: list[bytes] = []
        """Answers of the next requests in place of their own."""

    def __call__(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
        if self.failures and reply:
            return self.failures.pop(0) % {b"reply": reply}
        kind = subject.removeprefix(PREFIX)
        body = json.loads(payload) if payload else {}
        if subject == b"$SYS.REQ.USER.INFO":
            if self.user is None:
                return b"-ERR 'Permissions Violation for Publish to \"$SYS.REQ.USER.INFO\"'\r\n"
            return msg(reply, json.dumps({"data": self.user}).encode())
        if kind == b"INFO":
            return msg(reply, b'{"type": "io.nats", "streams": 1}')
        if kind.startswith(b"DIRECT.GET."):
            return self._batch(reply, body)
        if kind.startswith(b"STREAM.MSG.GET."):
            return msg(reply, json.dumps(self._single(body["seq"])).encode())
        if kind.startswith(b"STREAM.SNAPSHOT."):
            return msg(reply, b'{"success": true}') + self._snapshot(body)
        found = {
            b"STREAM.INFO.S": self._info, b"STREAM.LIST": self._list, b"STREAM.NAMES": self._names,
            b"CONSUMER.LIST.S": self._consumers,
        }.get(kind)  # fmt: skip
        if found is None:
            error = {"code": 404, "err_code": 10059, "description": "stream not found"}
            return msg(reply, json.dumps({"error": error}).encode()) if reply else b""
        return msg(reply, json.dumps(found(body)).encode())

    def _info(self, body: dict[str, Any]) -> dict[str, Any]:
        held = sorted(self.leader)
        first = held[0] if held else self.last + 1
        gone = [seq for seq in range(first, self.last + 1) if seq not in self.leader]
        state: dict[str, Any] = {
            "messages": len(held), "bytes": 9, "first_seq": first, "first_ts": rfc3339(0), "last_seq": self.last,
            "last_ts": rfc3339(0), "num_deleted": len(gone), "consumer_count": len(self.consumers),
        }  # fmt: skip
        if body.get("deleted_details") and self.list_deleted:
            state["deleted"] = gone
        return {"created": "then", "config": {"name": "S", "allow_direct": self.direct}, "state": state}

    def _list(self, body: dict[str, Any]) -> dict[str, Any]:
        names = self.names[body["offset"] : body["offset"] + 2]
        there = [{"config": {"name": name}} for name in names if name not in self.silent]
        return {"total": len(self.names), "streams": there, "missing": [name for name in names if name in self.silent]}

    def _names(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"total": len(self.names), "streams": self.names[body["offset"] :]}

    def _consumers(self, body: dict[str, Any]) -> dict[str, Any]:
        floor = {"consumer_seq": 3, "stream_seq": 4, "last_active": "then"}
        found = [{"name": name, "config": {}, "ack_floor": floor} for name in self.consumers]
        return {"total": len(found), "consumers": found[body["offset"] :]}

    def _batch(self, reply: bytes, body: dict[str, Any]) -> bytes:
        self.batches += 1
        found = [self.replica[seq] for seq in sorted(self.replica) if seq >= body["seq"]][: body["batch"]]
        if not found:
            return hmsg(reply, b"NATS/1.0 404 Message Not Found\r\n\r\n")
        out = b""
        for one in found:
            block = one.headers[:-2] or b"NATS/1.0\r\n"
            own = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n" % (
                self.answering, one.subject, one.seq, rfc3339(one.ts).encode(),
            )  # fmt: skip
            out += hmsg(reply, block + own, one.payload)
        return out + hmsg(reply, b"NATS/1.0 204 EOB\r\n\r\n")

    def _single(self, seq: int) -> dict[str, Any]:
        self.singles += 1
        one = self.leader.get(seq)
        if one is None:
            return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        found = {"seq": seq, "subject": one.subject.decode(), "time": rfc3339(one.ts)}
        for key, value in (("hdrs", one.headers), ("data", one.payload)):
            if value:
                found[key] = base64.b64encode(value).decode()
        return {"message": found}

    def _snapshot(self, body: dict[str, Any]) -> bytes:
        state = json.dumps({"consumer_count": len(self.consumers)}).encode()
        entries = [stream_archive.encode(stream_archive.STATE_NAME, 0, 0, b"", state)]
        if not body["no_consumers"]:
            for name, content in self.consumers.items():
                key = stream_archive.CONSUMER_PREFIX + name.encode()
                entries.append(stream_archive.encode(key, 0, 0, b"", json.dumps(content).encode()))
        entries += [one.encoded() for one in self.leader.values()]
        data = s2.STREAM_ID + b"".join(s2.encode(self.format + b"".join(entries) + stream_archive.END))
        subject, out = body["deliver_subject"].encode(), b""
        pieces = [data[at : at + 64] for at in range(0, len(data), 64)]
        for number, piece in enumerate(pieces):
            if self.ended and number == len(pieces) - 1:
                return out + hmsg(subject, self.ended)
            ack = b"$JS.SNAPSHOT.ACK.S.x.%d.%d" % (len(piece), number)
            out += b"MSG %b r1 %b %d\r\n%b\r\n" % (subject, ack, len(piece), piece)
        return out + msg(subject, b"")
