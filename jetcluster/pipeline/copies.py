"""The copies of a stream (its replicas, those of its mirrors, or a stream as a whole) and the progress of each.

`compared` compares a stream with one that it was published into again (`restore --mode fence|msgid --source-seq`),
which has new sequences and times, no gaps, and more headers. So it compares subjects and payloads by the header
`Jc-Source-Seq`: each message must occur once, and those of one subject in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jetcluster.arrow.fetch import PROOF
from jetcluster.client.connection import Connection
from jetcluster.client.listing import UnansweredError, listed
from jetcluster.client.servers import ServerOptions
from jetcluster.client.stream_state import StreamState, stream_state
from jetcluster.errors import ApiError, JetclusterError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MAX_TRIES: Final = 3
PROBE_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Copy:
    """A copy to read: the replica on server `peer`, or with "" the stream as its leader has it."""

    name: str
    stream: str
    peer: str = ""
    options: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    """Options of `format("jetstream")`: the servers and the user."""

    def reading(self, low: int, high: int, columns: str) -> dict[str, str]:
        """Returns the options to read the messages with `low` <= sequence <= `high` from this copy alone."""
        return {
            **self.options, "stream": self.stream, "startingOffsets": str(low), "endingOffsets": str(high + 1),
            "columns": columns, "failOnDataLoss": "false",
            "readPreference": f"peer:{self.peer}" if self.peer else "leader",
        }  # fmt: skip


def copies_of(state: StreamState, options: Mapping[str, str], prefix: str = "") -> list[Copy]:
    """Returns the replicas, the leader's first."""
    return [Copy(f"{prefix}{peer}", state.name, peer, options) for peer in state.peers]


def mirrors_of(connection: Connection, stream: str) -> tuple[list[StreamState], dict[str, str]]:
    """Returns (streams that mirror all of `stream`, names of its other mirrors with the reason)."""
    whole: list[StreamState] = []
    other: dict[str, str] = {}
    for config in _configs(connection):
        mirror = config.get("mirror") or {}
        if mirror.get("name") != stream or mirror.get("external"):
            continue
        if why := partial_because(config):
            other[config["name"]] = why
        else:
            whole.append(stream_state(connection, config["name"]))
    return whole, other


def partial_because(config: Mapping[str, Any]) -> str:
    """Returns why a mirror with this configuration cannot be compared with its origin; "" if it can."""
    mirror = config.get("mirror") or {}
    if mirror.get("filter_subject") or mirror.get("subject_transforms") or config.get("subject_transform"):
        return "it mirrors only a part, or under other subjects"
    if int(mirror.get("opt_start_seq") or 0) > 1 or mirror.get("opt_start_time"):
        return "it begins later than its origin"
    if mirror.get("consumer"):
        return "its consumer says what it mirrors"
    if not config.get("allow_direct"):
        return "allow_direct is false: its replicas cannot be read"
    return ""


def _configs(connection: Connection) -> list[dict[str, Any]]:
    """Raises UnansweredError: a stream that does not answer may be a mirror."""
    found = listed(lambda path, body: connection.api(path, body, timeout=30.0), "STREAM.LIST", "streams")
    if found.missing:
        raise UnansweredError(f"STREAM.LIST lacks {', '.join(sorted(found.missing)[:5])}")
    return [one["config"] for one in found.entries.values()]


def applied(server: ServerOptions, copy: Copy) -> int:
    """Returns the sequence up to which this copy has the stream. Raises the last attempt's error."""
    failure: JetclusterError = JetclusterError("it was not asked")
    for attempt in range(MAX_TRIES):
        try:
            with server.connect(attempt) as connection:
                return _applied(connection, copy)
        except JetclusterError as error:
            failure = error
        time.sleep(0.2)
    raise failure


def _applied(connection: Connection, copy: Copy) -> int:
    if not copy.peer:
        return stream_state(connection, copy.stream).last
    body = json.dumps({"seq": 1, "batch": 1}).encode()
    subject = f"$JS.API.DIRECT.PEER.{copy.stream}.{copy.peer}"
    end = connection.gather(subject, body, PROOF, PROBE_SECONDS).wait()
    told = end.get("Jc-Applied-Seq")
    if told is None:
        raise ApiError(end.status or 500, 0, f"the replica on {copy.peer} answers {end.status} {end.description}")
    return int(told)


def fence(reached: Mapping[Copy, int], limit: int) -> int:
    """Returns the sequence up to which all copies can be compared: messages that a copy has not applied are lag."""
    return min([limit, *reached.values()])


def lags(reached: Mapping[Copy, int], last: int) -> dict[str, int]:
    """Returns by how many messages each lagging copy is behind `last`."""
    return {copy.name: last - seq for copy, seq in reached.items() if seq < last}


def chosen(copies: Sequence[Copy], peers: str) -> list[Copy]:
    """Returns the copies on the servers in `peers` (by commas, or "all"). Raises ValueError for an unknown server."""
    if peers == "all":
        return list(copies)
    wanted = [word.strip() for word in peers.split(",") if word.strip()]
    known = {copy.peer for copy in copies}
    for name in wanted:
        if name not in known:
            raise ValueError(f"no replica on {name}; there are {', '.join(sorted(known))}")
    return [copy for copy in copies if copy.peer in wanted]


ROWS_SHOWN: Final = 20
_PLACED: Final = """
SELECT try_cast(headers['Jc-Source-Seq'][0] AS bigint) AS seq, seq AS at, subject, xxhash64(subject, data) AS hash
FROM {rows}
"""

_COMPARED: Final = """
WITH mine AS (SELECT seq, xxhash64(subject, data) AS hash FROM {ours}),
placed AS (SELECT *, count(*) OVER (PARTITION BY seq) AS times,
                  lag(at) OVER (PARTITION BY subject ORDER BY seq, at) AS before FROM {theirs} WHERE seq IS NOT NULL)
SELECT seq, at, CASE WHEN mine.hash IS NULL THEN 'extra' WHEN placed.hash IS NULL THEN 'missing'
                     WHEN mine.hash <> placed.hash THEN 'differs' WHEN times > 1 THEN 'twice'
                     WHEN before > at THEN 'reordered' END AS kind
FROM mine FULL JOIN placed USING (seq)
"""


def compared(session: SparkSession, ours: Copy, theirs: Copy, last: int, their_last: int) -> dict[str, Any]:
    """Returns {messages, unmarked, kinds: {kind: count}, first: [{seq, at, kind}, ...]}. `at` is the sequence in
    `theirs`; `unmarked` counts its messages without the header, which were not restored and are not compared."""
    mine = _rows(session, ours, last, "seq,subject,data")
    placed = session.sql(_PLACED, rows=_rows(session, theirs, their_last, "seq,subject,headers,data")).persist()
    try:
        rows = session.sql(_COMPARED, ours=mine, theirs=placed).persist()
        counts = {row.kind: row["count"] for row in rows.groupBy("kind").count().collect()}
        first: list[Row] = rows.where("kind IS NOT NULL").orderBy("seq", "at").limit(ROWS_SHOWN).collect()
        unmarked = placed.where("seq IS NULL").count()
        rows.unpersist()
    finally:
        placed.unpersist()
    return {
        "messages": sum(counts.values()),
        "unmarked": unmarked,
        "kinds": {kind: count for kind, count in sorted(counts.items(), key=str) if kind},
        "first": [row.asDict() for row in first],
    }


def _rows(session: SparkSession, copy: Copy, last: int, columns: str) -> DataFrame:
    return session.read.format("jetstream").options(**copy.reading(1, last, columns)).load()
