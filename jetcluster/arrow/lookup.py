"""`BucketLookup`: the values of given keys of a key-value bucket, by batched Direct Gets (`multi_last`) and a cache.

Before it asks for keys, it asks the stream's leader, who proves that it leads, for the last sequence; an answer counts
when its replica proves to have applied that (`read_task.LastFetch`). So a value is the newest of a moment that is not
further back than the cache's `max_age`, whatever replica gave it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from jetcluster.arrow.bucket import PUT, operations
from jetcluster.arrow.convert import Converter
from jetcluster.arrow.link import Link, check_preference
from jetcluster.arrow.lookup_cache import KeyEntry, LookupCache
from jetcluster.arrow.options import OptionError, SourceOptions
from jetcluster.arrow.planner import LastTask, Target
from jetcluster.arrow.read_task import LastFetch, leader_state
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamError, StreamState, is_ours, leader_message, stream_state
from jetcluster.errors import ApiError
from jetcluster.protocol.subjects import is_valid_literal

COLUMNS: Final = ("subject", "data", "seq", "time_ns", "headers_raw")
MISSING: Final = KeyEntry()


class BucketLookup:
    """Keeps one connection, opened on first use. Not for several threads."""

    def __init__(self, options: SourceOptions, bucket: str, cache: LookupCache, index: int = 0) -> None:
        """`index` spreads users over servers. Raises OptionError."""
        if not bucket or any(c in bucket for c in ".*> /"):
            raise OptionError(f"{bucket!r} is no bucket's name")
        if options.preference.kind == "mirror":
            raise OptionError("a look-up reads the bucket's own replicas, no mirror's")
        self._options = options
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        """The beginning of subjects, before the key."""
        self._mirrored = False
        """It is that of the bucket that this one mirrors."""
        self._cache = cache
        self._index = index
        self._link: Link | None = None

    def find(self, keys: Iterable[str | None]) -> dict[str | None, KeyEntry]:
        """Returns the newest entry of each key, `KeyEntry()` for one that the bucket has not or cannot have. Raises
        StreamError, and the error of the last attempt."""
        found: dict[str | None, KeyEntry] = {}
        unknown: list[str] = []
        for key in dict.fromkeys(keys):
            if key is None or not is_valid_literal((self._prefix + key).encode()):
                found[key] = MISSING
            elif (entry := self._cache.get(key)) is not None:
                found[key] = entry
            else:
                unknown.append(key)
        if unknown:
            asked = self._cache.clock()
            stored = self._asked(unknown)
            for key in unknown:
                found[key] = entry = stored.get(key, MISSING)
                self._cache.put(key, entry, asked)
        return found

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _asked(self, keys: list[str]) -> dict[str, KeyEntry]:
        state = self._state()
        link = self._linked(state)
        if not state.messages:
            return {}
        if state.config.get("mirror") and not self._mirrored:
            self._take_origins_prefix(link, state)
        if not state.current and not is_ours(link.connection):
            raise StreamError(f"{self._stream}: a look-up on nats-server needs all replicas online and current")
        task = LastTask(link.target, tuple(self._prefix + key for key in keys), state.last, self._index, newest=True)
        converter = Converter(COLUMNS, self._stream)
        found: dict[str, KeyEntry] = {}
        for batch in LastFetch(link, self._options, task):
            if batch.count:
                found |= self._entries(converter.convert(batch))
        return found

    def _take_origins_prefix(self, link: Link, state: StreamState) -> None:
        """Takes the beginning of subjects from the first message: a mirror has its origin's subjects."""
        first = {"seq": max(state.first, 1), "next_by_subj": "$KV.*.>"}
        question = partial(leader_message, stream=self._stream, wanted=first)
        try:
            found = question(link.connection)
        except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
            link.close()
            found = ask(self._options.server, question, self._options.retry_timeout)
        if found is not None:
            self._prefix = ".".join([*str(found["subject"]).split(".", 2)[:2], ""])
            self._mirrored = True

    def _entries(self, batch: Any) -> dict[str, KeyEntry]:
        subjects, data, seqs, times, blocks = batch.columns
        start = len(self._prefix)
        rows = zip(*(column.to_pylist() for column in (subjects, data, seqs, operations(blocks), times)), strict=True)
        return {
            subject[start:]: KeyEntry(value if operation == PUT else None, seq, operation, time)
            for subject, value, seq, operation, time in rows
        }

    def _state(self) -> StreamState:
        """Returns the bucket's state from a leader that proves itself. Raises StreamError, and what `ask` raises."""
        patience = self._options.retry_timeout
        if self._link is not None:
            return leader_state(self._link, self._options, self._stream, patience)
        question = partial(stream_state, stream=self._stream, linearizable=True)
        server = self._options.server
        return ask(server, question, patience, reach=server.reach_timeout)

    def _linked(self, state: StreamState) -> Link:
        """Returns a link to the bucket's replicas as they are now."""
        if not state.config.get("allow_direct"):
            raise StreamError(f"{self._stream} has allow_direct=false, and a look-up reads by Direct Get")
        target = Target(self._stream, self._stream, state.created, state.leader, state.peers)
        if self._link is None or self._link.target != target:
            self.close()
            check_preference(self._options, state.peers)
            self._link = Link(self._options, target, self._index)
        return self._link
