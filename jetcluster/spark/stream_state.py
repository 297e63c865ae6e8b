"""The state of a stream as its leader reports it. Plans and proofs rest on it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from jetcluster.errors import NO_MESSAGE_FOUND, ApiError, JetclusterError, PassingError
from jetcluster.model.times import rfc3339
from jetcluster.spark.connection import Connection
from jetcluster.spark.options import ServerOptions

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0
"""A question to a leader is repeated for this long: an election may be under way, or a server shutting down."""


class StreamError(JetclusterError):
    """The stream does not exist, or cannot be read with these options."""


class DataLossError(JetclusterError):
    """Messages that the query should read are gone (`failOnDataLoss`)."""


class StreamState(NamedTuple):
    """The fields of a STREAM.INFO answer that readers need."""

    name: str
    created: str
    first: int
    last: int
    messages: int
    bytes: int
    leader: str
    peers: tuple[str, ...]
    """Names of the servers with a replica, the leader's first."""
    current: bool
    """The leader reports every follower online and without lag."""
    config: dict[str, Any]


def is_ours(connection: Connection) -> bool:
    """Returns whether the server is jetcluster, which proves coverage and can address one replica."""
    return str(connection.info.get("go", "")).startswith("python")


def stream_state(connection: Connection, stream: str, timeout: float = 5.0) -> StreamState:
    """Asks for a stream's state. Raises StreamError for an unknown stream, and what `Connection.api` raises."""
    try:
        info = connection.api(f"STREAM.INFO.{stream}", timeout=timeout)
    except ApiError as error:
        if error.is_stream_not_found:
            raise StreamError(f"there is no stream {stream}") from error
        raise
    state, cluster = info["state"], info.get("cluster") or {}
    replicas = cluster.get("replicas") or []
    return StreamState(
        stream, str(info["created"]), int(state["first_seq"]), int(state["last_seq"]), int(state["messages"]),
        int(state["bytes"]), str(cluster.get("leader") or connection.server_name),
        (str(cluster.get("leader") or connection.server_name), *(str(peer["name"]) for peer in replicas)),
        all(peer.get("current") and not peer.get("offline") and not peer.get("lag") for peer in replicas),
        info["config"],
    )  # fmt: skip


def leader_next(connection: Connection, stream: str, seq: int, subject: str, timeout: float = 5.0) -> int | None:
    """Returns the first stored sequence from `seq` on whose subject matches, as the leader has it; None for none."""
    try:
        found = connection.api(f"STREAM.MSG.GET.{stream}", {"seq": seq, "next_by_subj": subject}, timeout=timeout)
    except ApiError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return None
        raise
    return int(found["message"]["seq"])


def seq_at_time(connection: Connection, state: StreamState, ns: int, timeout: float = 5.0) -> int:
    """Returns the leader's first stored sequence at or after `ns` (Unix nanoseconds); last + 1 if there is none."""
    body = {"start_time": rfc3339(max(ns, 1)), "next_by_subj": ">"}
    try:
        found = connection.api(f"STREAM.MSG.GET.{state.name}", body, timeout=timeout)
    except ApiError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return state.last + 1
        raise
    return int(found["message"]["seq"])


_good: dict[tuple[str, ...], str] = {}
"""Servers -> the one that answered last: a paused server costs `connectTimeout` once, not per trigger of a query."""


def ask(options: ServerOptions, question: Callable[[Connection], T], patience: float = PATIENCE_SECONDS) -> T:
    """Returns the answer to `question`, put to one server after the other for `patience` seconds while errors are
    retriable (no leader, no connection, 503). Raises the last error then, and any other error at once."""
    deadline = time.monotonic() + patience
    pause = 0.05
    for first in itertools.count():
        try:
            with _connect(options, first) as connection:
                answer = question(connection)
                _good[options.servers] = connection.url
                return answer
        except (PassingError, ApiError) as error:
            if not error.retriable:
                raise
            failure: JetclusterError = error
        if time.monotonic() + pause > deadline:
            raise failure
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    raise AssertionError("counts for ever")


def _connect(options: ServerOptions, first: int) -> Connection:
    good = _good.get(options.servers)
    if first or good is None:
        return options.connect(first)
    return options.connect_to(good, *(url for url in options.servers if url != good))
