"""`jetcluster replay STREAM`: publishes dead letters to the subjects that their messages had, and deletes them.

A letter is deleted after the PubAck, and its message has an id of its own. A letter that an earlier, interrupted replay
may have put back (`replay_target`) is left, and `--again` sends it: so none is put back twice unless that is asked for.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from jetcluster.cli.common import DONE, REFUSED, connected, fail
from jetcluster.cli.replay_target import MAX_IDS, PROVING, REPLAYED, Past, ReplayTarget
from jetcluster.client.connection import Connection
from jetcluster.client.reply import api_error
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import NO_MESSAGE_FOUND, ApiError
from jetcluster.model.times import parse_rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal

MAX_TARGETS: Final = 4096
"""Subjects whose search is remembered."""
_OWN: Final = b"nats-dead-letter-"
_SERVERS: Final = ("$JS.", "$SYS.", "_INBOX.")
"""Beginnings of subjects that only a forged letter has."""


class StoredLetter(NamedTuple):
    """A stored dead letter."""

    seq: int
    stored: int
    """Unix nanoseconds."""
    headers: bytes
    payload: bytes

    def field(self, name: bytes) -> bytes:
        """Returns a header's first value, b"" for none. What follows a bare LF in another value is no header."""
        return next((value for key, value in header_block.parse(self.headers) if key == name), b"")

    @property
    def subject(self) -> str:
        """Subject of its message. A byte that is not UTF-8 becomes `\\x` and two digits."""
        return self.field(b"Nats-Dead-Letter-Subject").decode(errors="backslashreplace")

    @property
    def message_id(self) -> bytes:
        return REPLAYED + self.field(b"Nats-Msg-Id")

    @property
    def flaw(self) -> str:
        """Why it cannot go back; "" if it can."""
        subject = self.field(b"Nats-Dead-Letter-Subject")
        if not self.field(b"Nats-Dead-Letter-Stream") or not self.field(b"Nats-Msg-Id"):
            return "it is no dead letter"
        if self.field(b"Nats-Dead-Letter-Removed") == b"true" or not subject:
            return "its message was removed before the letter was sent"
        if not is_valid_literal(subject) or self.subject.encode() != subject or self.subject.startswith(_SERVERS):
            return f"{self.subject!r} is no subject to publish to"
        return ""

    def message_headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the headers of its message, with the id of the replay."""
        kept = [
            (key, value)
            for key, value in header_block.parse(self.headers)
            if key.lower() != b"nats-msg-id" and not key.lower().startswith(_OWN)
        ]
        return [(b"Nats-Msg-Id", self.message_id), *kept]


class LetterReplay:
    """The letters of one stream on their way back."""

    def __init__(self, connection: Connection, stream: str, *, dry_run: bool = False, again: bool = False) -> None:
        """`again`: also letters that an earlier replay may have put back."""
        self._connection = connection
        self._stream = stream
        self._dry_run = dry_run
        self._again = again
        self._targets: dict[tuple[str, str], ReplayTarget] = {}
        self.done = 0
        self.left = 0

    def letters(self, subject: str, seqs: Sequence[int]) -> Iterator[StoredLetter]:
        """Yields the letters at `seqs`, or all that match `subject` and are stored now: what is replayed may come back
        as a new letter. Raises ApiError."""
        for seq in seqs:
            found = self._get({"seq": seq})
            if found is not None:
                yield found
        if seqs:
            return
        at, last = 1, int(self._info()["state"]["last_seq"])
        while at <= last and (found := self._get({"seq": at, "next_by_subj": subject})) and found.seq <= last:
            at = found.seq + 1
            yield found

    def run(self, letters: Iterable[StoredLetter], limit: int) -> None:
        """Replays at most `limit` letters, 0: all. Raises ApiError and what requests raise; what was done stays."""
        for letter in letters:
            if limit and self.done >= limit:
                return
            past, why = (Past.DOUBT, letter.flaw) if letter.flaw else self._past(letter)
            if past is Past.DOUBT:
                self.left += 1
                print(f"{letter.seq}: left, {why}")
                continue
            if not self._dry_run:
                if past is Past.SAFE:
                    self._publish(letter)
                self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": letter.seq})
            self.done += 1
            print(f"{letter.seq}: {'would go' if self._dry_run else 'gone'} to {letter.subject}")

    def _past(self, letter: StoredLetter) -> tuple[Past, str]:
        """Returns what is known of earlier replays of a letter, and for DOUBT why."""
        streams = self._connection.api("STREAM.NAMES", {"subject": letter.subject}).get("streams") or []
        pasts = {self._target(name, letter.subject).past(letter.message_id, letter.stored) for name in streams}
        if Past.BACK in pasts:
            return Past.BACK, ""
        if self._again or pasts == {Past.SAFE}:
            return Past.SAFE, ""
        why = (
            f"{streams[0]} may have had its message and removed it" if streams else f"no stream takes {letter.subject}"
        )
        return Past.DOUBT, f"an earlier replay may have put it back: {why} (--again sends it)"

    def _target(self, stream: str, subject: str) -> ReplayTarget:
        found = self._targets.get((stream, subject))
        if found is None:
            if len(self._targets) >= MAX_TARGETS or sum(one.known for one in self._targets.values()) >= MAX_IDS:
                self._targets.clear()
            found = self._targets[stream, subject] = ReplayTarget(self._connection, stream, subject)
        return found

    def _info(self) -> dict[str, Any]:
        return self._connection.api(f"STREAM.INFO.{self._stream}", headers=PROVING)

    def _get(self, body: dict[str, Any]) -> StoredLetter | None:
        try:
            message = self._connection.api(f"STREAM.MSG.GET.{self._stream}", body)["message"]
        except ApiError as error:
            if error.err_code == NO_MESSAGE_FOUND:
                return None
            raise
        block, payload = b64decode(message.get("hdrs") or ""), b64decode(message.get("data") or "")
        return StoredLetter(int(message["seq"]), parse_rfc3339(message["time"]), block, payload)

    def _publish(self, letter: StoredLetter) -> None:
        answer = self._connection.request(letter.subject, letter.payload, letter.message_headers()).json()
        if answer.get("error") or not answer.get("stream"):
            raise api_error(answer.get("error") or {"description": "the answer is no PubAck"})


def run_replay(
    servers: ServerOptions, stream: str, subject: str, seqs: Sequence[int], limit: int, *, dry_run: bool, again: bool
) -> int:
    """Runs the command and returns the exit code: 0 done, 1 refused, or letters were left; 2 no server answered."""

    def work(connection: Connection) -> int:
        replay = LetterReplay(connection, stream, dry_run=dry_run, again=again)
        replay.run(replay.letters(subject, seqs), limit)
        print(f"{replay.done} letters {'would be' if dry_run else 'were'} replayed, {replay.left} left")
        return fail("replay", "some letters were left, as said above", REFUSED) if replay.left else DONE

    return connected("replay", servers, work)
