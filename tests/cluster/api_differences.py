"""Known differences of our answers of `$JS.API` from nats-server's (api_answers.py), by reason: the cluster's size, or
"" for both, the request, and the place and what is different there; "*" for any place."""

from __future__ import annotations

_RESET = ("CONSUMER.RESET", "CONSUMER.RESET to a sequence")
_ALONE = (
    "META.LEADER.STEPDOWN to nobody",
    "META.RESCUE",
    "SERVER.REMOVE of none",
    "SERVER.REMOVE without a name",
    "META.LEADER.STEPDOWN",
    "ACCOUNT.STREAM.MOVE of no stream",
    "ACCOUNT.STREAM.MOVE of no server",
    "ACCOUNT.STREAM.MOVE to nowhere",
    "ACCOUNT.STREAM.CANCEL_MOVE",
)

DIFFERENT: dict[str, list[tuple[str, str, str]]] = {
    "every request is answered, where nats-server says nothing": [
        ("", "unknown subject", "*"),
        ("3", "STREAM.SNAPSHOT of no stream", "*"),
        *(("1", name, "*") for name in _ALONE),
    ],
    "a list is a list where it is empty, as strict clients want it": [("", "STREAM.NAMES of nothing", ".streams")],
    "the specification's name of a message's headers is there beside nats-server's": [
        ("", "STREAM.MSG.GET", ".message.headers: not there"),
        ("", "STREAM.MSG.GET of the last one", ".message.headers: not there"),
    ],
    "the specification has `success` in the answers to SNAPSHOT and RESTORE": [
        ("", "STREAM.SNAPSHOT", ".success: not there"),
        ("", "STREAM.RESTORE", ".success: not there"),
    ],
    "a consumer that was reset still knows when it delivered, and was acknowledged, last": [
        ("", name, f".{field}.last_active: not there") for name in _RESET for field in ("delivered", "ack_floor")
    ],
    "a consumer's state is its stream's, with as many replicas": [
        ("3", "CONSUMER.CREATE without a name", f".cluster.{field}: not there")
        for field in ("raft_group", "leader_since", "system_account", "traffic_account", "replicas")
    ],
    "a list of consumers of no stream is an error, where nats-server's cluster shows an empty one": [
        ("3", "CONSUMER.LIST of no stream", ".error: not there"),
    ],
}
