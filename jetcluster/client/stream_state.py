"""The state of a stream as its leader reports it. Plans and proofs rest on it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.errors import NO_MESSAGE_FOUND, ApiError, JetclusterError
from jetcluster.model.times import parse_rfc3339, rfc3339

_PROVING: Final = {"Nats-Read-Consistency": "linearizable"}


class StreamError(JetclusterError):
    """The stream does not exist, or cannot be read with these options."""


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
    first_time: str = ""
    last_time: str = ""
    """RFC 3339, of the first and the last message; of no meaning without any."""


def is_ours(connection: Connection) -> bool:
    """Returns whether the server is jetcluster, which proves coverage and can address one replica."""
    return str(connection.info.get("go", "")).startswith("python")


def stream_state(
    connection: Connection, stream: str, timeout: float = 5.0, *, linearizable: bool = False
) -> StreamState:
    """Asks for a stream's state. `linearizable`: the leader proves that it leads, so that nothing is older than the
    question; nats-server does not know that wish. Raises StreamError for an unknown stream, and what `Connection.api`
    raises."""
    try:
        info = connection.api(f"STREAM.INFO.{stream}", headers=_PROVING if linearizable else b"", timeout=timeout)
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
        info["config"], str(state.get("first_ts", "")), str(state.get("last_ts", "")),
    )  # fmt: skip


def leader_next(connection: Connection, stream: str, seq: int, subject: str, timeout: float = 5.0) -> int | None:
    """Returns the first stored sequence from `seq` on whose subject matches, as the leader has it; None for none."""
    found = leader_message(connection, stream, {"seq": seq, "next_by_subj": subject}, timeout)
    return None if found is None else int(found["seq"])


def leader_next_time(connection: Connection, stream: str, seq: int, subject: str, timeout: float = 5.0) -> int | None:
    """Returns the time of that message, Unix nanoseconds; None for none."""
    found = leader_message(connection, stream, {"seq": seq, "next_by_subj": subject}, timeout)
    return None if found is None else parse_rfc3339(str(found["time"]))


def leader_message(
    connection: Connection, stream: str, wanted: dict[str, object], timeout: float = 5.0
) -> dict[str, Any] | None:
    """Returns the message that a STREAM.MSG.GET request names, as the leader has it: an object with `seq`, `subject`,
    `time` and more; None for none."""
    try:
        found = connection.api(f"STREAM.MSG.GET.{stream}", wanted, timeout=timeout)
    except ApiError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return None
        raise
    message: dict[str, Any] = found["message"]
    return message


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
