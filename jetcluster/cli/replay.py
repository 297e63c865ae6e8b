"""`jetcluster replay STREAM`: publishes dead letters to the subjects that their messages had, and deletes them.

Exactly once, also when it is interrupted and begun again: a letter is deleted after the PubAck, and its message has an
id of its own. The stream knows that id for its duplicate window; where a letter is older, the message is looked for.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jetcluster.cli.common import DONE, REFUSED, connected, fail
from jetcluster.client.connection import Connection
from jetcluster.client.reply import api_error
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import NO_MESSAGE_FOUND, ApiError
from jetcluster.model.times import parse_rfc3339, rfc3339
from jetcluster.protocol import headers as header_block

CLOCK_SLACK_NS: Final = 60_000_000_000
"""By so much the clocks of this machine and of the servers may differ."""
_OWN: Final = b"nats-dead-letter-"


class StoredLetter(NamedTuple):
    """A stored dead letter."""

    seq: int
    stored: int
    """Unix nanoseconds."""
    headers: bytes
    payload: bytes

    @property
    def subject(self) -> str:
        """Subject of its message; "" if it has none, as its payload was removed."""
        return (header_block.get(self.headers, b"Nats-Dead-Letter-Subject") or b"").decode()

    @property
    def message_id(self) -> bytes:
        return b"replay:" + (header_block.get(self.headers, b"Nats-Msg-Id") or b"")

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

    def __init__(self, connection: Connection, stream: str, *, dry_run: bool = False) -> None:
        self._connection = connection
        self._stream = stream
        self._dry_run = dry_run
        self.done = 0
        self.skipped = 0
        """Letters without a subject: their messages were removed before they were sent."""

    def letters(self, subject: str, seqs: Sequence[int]) -> Iterator[StoredLetter]:
        """Yields the letters at `seqs`, or all that match `subject`. Raises ApiError."""
        for seq in seqs:
            found = self._get({"seq": seq})
            if found is not None:
                yield found
        at = 1
        while not seqs and (found := self._get({"seq": at, "next_by_subj": subject})) is not None:
            at = found.seq + 1
            yield found

    def run(self, letters: Iterator[StoredLetter], limit: int) -> None:
        """Replays at most `limit` letters, 0: all. Raises ApiError and what requests raise; what was done stays."""
        for letter in letters:
            if limit and self.done >= limit:
                return
            if not letter.subject:
                self.skipped += 1
                print(f"{letter.seq}: left, its message was removed before the letter was sent")
                continue
            if not self._dry_run:
                if not self._is_back(letter):
                    self._publish(letter)
                self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": letter.seq})
            self.done += 1
            print(f"{letter.seq}: {'would go' if self._dry_run else 'gone'} to {letter.subject}")

    def _get(self, body: dict[str, Any], stream: str = "") -> StoredLetter | None:
        try:
            message = self._connection.api(f"STREAM.MSG.GET.{stream or self._stream}", body)["message"]
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

    def _is_back(self, letter: StoredLetter) -> bool:
        """Returns True when an earlier replay stored the message, longer ago than its stream remembers ids."""
        for stream in self._connection.api("STREAM.NAMES", {"subject": letter.subject}).get("streams") or []:
            config = self._connection.api(f"STREAM.INFO.{stream}")["config"]
            if time.time_ns() - letter.stored < int(config.get("duplicate_window") or 0) // 2:
                continue
            subject = ">" if config.get("subject_transform") else letter.subject
            start = rfc3339(max(1, letter.stored - CLOCK_SLACK_NS))
            found = self._get({"start_time": start, "next_by_subj": subject}, stream)
            while found is not None:
                if header_block.get(found.headers, b"Nats-Msg-Id") == letter.message_id:
                    return True
                found = self._get({"seq": found.seq + 1, "next_by_subj": subject}, stream)
        return False


def run_replay(
    servers: ServerOptions, stream: str, subject: str, seqs: Sequence[int], limit: int, *, dry_run: bool
) -> int:
    """Runs the command and returns the exit code: 0 done, 1 refused, or letters were left; 2 no server answered."""

    def work(connection: Connection) -> int:
        replay = LetterReplay(connection, stream, dry_run=dry_run)
        replay.run(replay.letters(subject, seqs), limit)
        print(f"{replay.done} letters {'would be' if dry_run else 'were'} replayed, {replay.skipped} left")
        return fail("replay", "some letters have no subject", REFUSED) if replay.skipped else DONE

    return connected("replay", servers, work)
