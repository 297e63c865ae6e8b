"""A restore of an archive of format V1 (`tar_archive`), which is read twice.

What the client sends is surveyed as it comes and set aside in a file (`spool`). Which of its messages are there is
known at its end; then the file is read, and the messages go into the stream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

from jetcluster.api.spool import Spool, SpoolError
from jetcluster.api.spool_room import SpoolClaim
from jetcluster.budget import Steps
from jetcluster.model import json_steps
from jetcluster.protocol import consumer_file, s2
from jetcluster.protocol.stream_archive import ArchiveEntry, ArchiveError
from jetcluster.protocol.tar_archive import TarConsumer, TarMessages, TarSurvey

Fields = dict[str, Any]
Consumer = tuple[str, partial[Steps[Fields]]]
"""Name, and what reads its entry."""

STEP_CONSUMERS: Final = 256
_FILE_FIELDS: Final = ("Created", "Name")
"""Fields of a file with a configuration that are none of the configuration."""


class TarRestore:
    """The archive of one restore."""

    def __init__(self, spool: Spool, claim: SpoolClaim) -> None:
        self._spool = spool
        self._claim = claim
        self._survey = TarSurvey()
        self._frames = s2.Decoder()
        self._messages: TarMessages | None = None
        """The second reading."""

    @property
    def held(self) -> int:
        """Bytes in memory, roughly."""
        again = self._messages.held if self._messages is not None else 0
        return self._survey.held + self._spool.held + self._frames.held + again

    @property
    def idle(self) -> int:
        """Decompressed bytes that were no messages."""
        return self._survey.idle

    def survey(self, content: bytes) -> Iterator[None]:
        """Reads decompressed bytes of the archive, in steps. Raises ArchiveError."""
        return self._survey.feed(content)

    async def keep(self, data: bytes) -> None:
        """Sets aside what was received. Raises ApiError, ArchiveError."""
        await self._claim.add(len(data))
        try:
            await self._spool.append(data)
        except SpoolError as error:
            raise ArchiveError(str(error)) from error

    def state(self) -> Steps[tuple[Fields, list[Consumer]]]:
        """Returns, in steps, the state of the archive, as `state.json` of format V2 has it, and the consumers. Raises
        ArchiveError when the archive is not complete."""
        survey = self._survey
        if not survey.finished:
            raise ArchiveError("the archive is not complete")
        self._messages = TarMessages((yield from survey.plan()))
        try:
            config = json.loads(survey.config)
        except (ValueError, RecursionError) as error:
            raise ArchiveError("meta.inf is no JSON") from error
        if not isinstance(config, dict):
            raise ArchiveError("meta.inf is no JSON object")
        consumers: list[Consumer] = []
        for one in survey.consumers():
            consumers.append((one.name, partial(_reading, one)))
            if len(consumers) % STEP_CONSUMERS == 0:
                yield
        return {"config": _bare(config), "last_seq": survey.last_seq}, consumers

    async def messages(self) -> AsyncIterator[Iterator[ArchiveEntry | None]]:
        """Yields, after `state`, iterators over the messages, each to be exhausted before the next. Their None is a
        step of work. Raises ArchiveError."""
        assert self._messages is not None
        try:
            async for piece in self._spool.pieces():
                yield self._reading(self._messages, piece)
        except SpoolError as error:
            raise ArchiveError(str(error)) from error

    async def close(self) -> None:
        try:
            await self._spool.close()
        finally:
            self._claim.end()

    def _reading(self, messages: TarMessages, piece: bytes) -> Iterator[ArchiveEntry | None]:
        for content in self._frames.steps(piece):
            if content is not None:
                yield from messages.feed(content)
            yield None


def _reading(consumer: TarConsumer) -> Steps[Fields]:
    """The entry of a consumer, as one of format V2 has it. Raises ValueError."""
    try:
        config = yield from json_steps.decoding(consumer.config.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(config, dict):
        raise ValueError("no object")
    try:
        state = yield from consumer_file.decoding(consumer.state)
    except ArchiveError as error:
        raise ValueError(str(error)) from error
    return {"config": _bare(config), "state": state}


def _bare(config: Fields) -> Fields:
    return {key: value for key, value in config.items() if key not in _FILE_FIELDS}
