"""The API for clients of a node without JetStream: it hands their requests to a node that has it.

Such a node is often the front of a cluster whose other nodes store. API subscriptions are local to each node
(`dispatch`), so clients here would find no responders. A request crosses the mesh as a notice on the ordered link,
after the requester's own subscription, and is published on the other node as if it had been made there; the answer
comes back by the interest in its reply subject. While no peer has JetStream there is no subscriber, and clients see
503.

The requester's connection does not cross, so its permissions are checked here: a request that makes the server publish
where the client may not is answered with the refusal that it would get there. A node without JetStream is no member of
the cluster, and a process with the routes' password looks like one. So only members hand over requests of the system
account and those about the cluster itself: such requests are for the clients of a node with JetStream.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from jetcluster.api.request import GUARDED, MAX_BODY_BYTES
from jetcluster.clock import Rng
from jetcluster.errors import (
    CONSUMER_DELIVER_SUBJECT,
    INVALID_CONFIG,
    OBJECT_DELIVER_SUBJECT,
    SNAPSHOT_DELIVER_SUBJECT,
    ApiError,
    by_code,
)
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import FrameError
from jetcluster.model.codec import dumps, loads
from jetcluster.model.dead_letters import LetterWish
from jetcluster.model.transforms import results_filter
from jetcluster.protocol.bus import Bus, Origin, Subscription, is_no_request
from jetcluster.protocol.headers import set_header

NOTICE: Final = "api_relay"
API: Final = b"$JS.API."
OBJECTS: Final = b"$OBJ."
"""The prefix of requests to a bucket, followed by its name; longer subjects are messages, which find the bucket's
stream."""
OF_THE_CLUSTER: Final = (b"META.", b"SERVER.", b"ACCOUNT.PURGE.", b"ACCOUNT.STREAM.")
REFUSED: Final = json.dumps(
    {"error": {"code": 403, "description": "ask a node with JetStream: this one is no member of the cluster"}}
).encode()
_HEAD: Final = struct.Struct("<HHHI")
"""Lengths of account, subject, reply and headers; the payload is the rest."""

_RESTORE: Final = b".API.STREAM.RESTORE."
_UPDATE: Final = b".API.STREAM.UPDATE."
_LETTERS: Final = (("config", "dead_letter", "subject"), ("config", "metadata", "jetcluster.dead_letter.subject"))
_Kind = tuple[bytes, int, str, tuple[str, ...]]
_DELIVERING: Final[tuple[_Kind, ...]] = (
    *(
        (part, code, "consumer_create", keys)
        for part in (b".API.CONSUMER.CREATE.", b".API.CONSUMER.DURABLE.CREATE.")
        for code, keys in (
            (CONSUMER_DELIVER_SUBJECT, ("config", "deliver_subject")),
            *((INVALID_CONFIG, keys) for keys in _LETTERS),
        )
    ),
    (b".API.STREAM.SNAPSHOT.", SNAPSHOT_DELIVER_SUBJECT, "stream_snapshot", ("deliver_subject",)),
    (b".API.STREAM.CREATE.", INVALID_CONFIG, "stream_create", ("republish", "dest")),
    (_UPDATE, INVALID_CONFIG, "stream_update", ("republish", "dest")),
    (_RESTORE, INVALID_CONFIG, "stream_restore", ("config", "republish", "dest")),
    (OBJECTS, OBJECT_DELIVER_SUBJECT, "", ("deliver_subject",)),
)
"""Requests that name a subject to deliver to: (part of their subject, refusal, type of the answer, where it is). Rows
of one part follow each other."""

BusOf = Callable[[str], Bus]


def encode(account: str, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """Raises ValueError when a name or subject is too long."""
    name = account.encode()
    if max(len(name), len(subject), len(reply)) > 0xFFFF:
        raise ValueError("a subject of 64 KiB")
    return _HEAD.pack(len(name), len(subject), len(reply), len(headers)) + name + subject + reply + headers + payload


def decode(notice: bytes) -> tuple[str, bytes, bytes, bytes, bytes]:
    """Raises ValueError."""
    if len(notice) < _HEAD.size:
        raise ValueError("cut off")
    *sizes, headers = _HEAD.unpack_from(notice)
    parts, at = [], _HEAD.size
    for size in (*sizes, headers):
        parts.append(notice[at : at + size])
        at += size
    if at > len(notice):
        raise ValueError("cut off")
    return parts[0].decode(), parts[1], parts[2], parts[3], notice[at:]


def is_ordinary(account: str, subject: bytes, *, domain: str, system_account: str) -> bool:
    """True for an API request that clients of any node may make. The relay's word counts as that of a client of this
    node, so it takes API requests alone."""
    if subject.startswith(OBJECTS):
        return account != system_account and subject.count(b".") == 1
    own = f"$JS.{domain}.API.".encode() if domain else API
    for prefix in (API, own):
        if subject.startswith(prefix):
            return account != system_account and not subject[len(prefix) :].startswith(OF_THE_CLUSTER)
    return False


def serve_relayed(
    mesh: MeshCore,
    bus_of: Callable[[str], Bus | None],
    is_member: Callable[[str], bool],
    *,
    domain: str,
    system_account: str,
) -> None:
    """Takes requests that other nodes hand over, on a node with JetStream, for existing accounts."""

    def take(peer: str, notice: bytes) -> None:
        try:
            account, subject, reply, headers, payload = decode(notice)
        except ValueError as error:
            raise FrameError(f"API request: {error}") from error
        bus = bus_of(account)
        if bus is None:
            return
        if is_ordinary(account, subject, domain=domain, system_account=system_account) or is_member(peer):
            bus.ask(subject, payload, reply, headers)
        elif reply:
            bus.publish(reply, REFUSED)

    mesh.on_notice(NOTICE, take, strangers=True)


def refusal(subject: bytes, payload: bytes, allowed: Callable[[bytes], bool]) -> bytes | None:
    """Returns the refusal of a request whose deliver subject the requester may not publish to (`allowed` decides, see
    `Request.may_deliver_to`), else None, also for one that cannot be decoded: it is refused where it is decoded."""
    if len(payload) > MAX_BODY_BYTES:
        return None
    folded = payload.lower()
    kinds = [kind for kind in _delivering(subject) if b"\\u" in payload or kind[3][-1].encode() in folded]
    try:
        body = loads(payload) if kinds else None
    except ApiError:
        return None
    for _, code, kind, keys in kinds:
        if not all(allowed(target.encode("utf-8", "replace")) for target in _targets(body, keys)):
            answer = {"type": f"io.nats.jetstream.api.v1.{kind}_response"} if kind else {}
            return dumps({**answer, "error": by_code(code, err="deliver subject is not permitted").to_dict()})
    return None


def _delivering(subject: bytes) -> list[_Kind]:
    """Returns what the request may name."""
    part = next((found[0] for found in _DELIVERING if found[0] in subject), b"")
    return [found for found in _DELIVERING if found[0] == part]


def _targets(body: Any, keys: tuple[str, ...]) -> list[str]:
    found = [body]
    for key in keys:
        found = [value for body in found for value in _values(body, key)]
    named = [target for target in found if isinstance(target, str)]
    if keys in _LETTERS:
        return [LetterWish(target).pattern for target in named]
    return [results_filter(target) for target in named] if keys[-1] == "dest" else named


def _values(body: Any, key: str) -> list[Any]:
    """Returns all values that a request's decoder may take for the key, whose case it ignores."""
    return [value for name, value in body.items() if name.lower() == key] if isinstance(body, dict) else []


class ApiRelay:
    """Hands over the requests of clients of a node without JetStream."""

    def __init__(
        self,
        mesh: MeshCore,
        bus_of: BusOf,
        rng: Rng,
        *,
        domain: str,
        system_account: str,
        elsewhere: Callable[[str, bytes], bool],
    ) -> None:
        """`elsewhere(account, subject)` is True for a subject that the account imports as a service."""
        self._mesh = mesh
        self._elsewhere = elsewhere
        self._bus_of = bus_of
        self._rng = rng
        self._domain = domain
        self._system = system_account
        self._accounts: set[str] = set()
        self._peers: dict[str, None] = {}
        self._subscriptions: list[tuple[Bus, Subscription]] = []
        mesh.on_peers(self._up, self._down)

    def serve(self, accounts: Iterable[str]) -> None:
        """Adds the relay of these accounts to the existing ones."""
        new = sorted({*accounts} - self._accounts)
        self._accounts.update(new)
        if self._peers:
            self._listen(new)

    def _up(self, info: NodeInfo) -> None:
        if info.jetstream:
            first = not self._peers
            self._peers[info.peer_id] = None
            if first:
                self._listen(sorted(self._accounts))

    def _down(self, info: NodeInfo) -> None:
        if info.peer_id in self._peers:
            del self._peers[info.peer_id]
            if not self._peers:
                for bus, subscription in self._subscriptions:
                    bus.unsubscribe(subscription)
                self._subscriptions.clear()

    def _listen(self, accounts: Iterable[str]) -> None:
        # not before there is a node to ask
        from jetcluster.api.dispatch import OBJECTS, SUBJECTS, SYSTEM_SUBJECTS

        prefixes = ["$JS.API.", *([f"$JS.{self._domain}.API."] if self._domain else [])]
        for account in accounts:
            bus = self._bus_of(account)
            served = SUBJECTS + (SYSTEM_SUBJECTS if account == self._system else ())
            for subject in (OBJECTS, *(prefix + subject for prefix in prefixes for subject in served)):
                taken = bus.subscribe(subject.encode(), self._hand_over(account), local_only=True)
                self._subscriptions.append((bus, taken))

    def _hand_over(self, account: str) -> Callable[[bytes, bytes, bytes, bytes, Origin], None]:
        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            # Without a reply subject no client would see the outcome.
            # A service import is asked in the account that exports it, and handed over there.
            if is_no_request(origin):
                return
            peers = [peer for peer in self._peers if peer in self._mesh.peers]
            if peers and reply and not self._elsewhere(account, subject):
                if origin.account == account:
                    refused = refusal(subject, payload, origin.may_deliver_to)
                    if refused is not None and not any(kind[0] == _UPDATE for kind in _delivering(subject)):
                        self._bus_of(account).publish(reply, refused)
                        return
                    # What is in the archive, and where the stream republishes to already, is known at the other node.
                    if refused is not None or (_RESTORE in subject and not origin.may_deliver_to(b">")):
                        headers = set_header(headers, GUARDED, b"1")
                peer = peers[int(self._rng.random() * len(peers))]
                self._mesh.notify(peer, NOTICE, encode(account, subject, reply, headers, payload))

        return take
