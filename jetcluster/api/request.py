"""An API request, and the demands of its headers.

`ApiContext`: the services, settings and counters that the handlers of one server share.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from jetcluster import errors
from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng
from jetcluster.config.options import CompatOptions
from jetcluster.errors import SEED_STREAM_NOT_FOUND, ApiError, by_code, invalid_config
from jetcluster.logs import Log
from jetcluster.model import dead_letters
from jetcluster.model.advisory import (
    Advisories,
    ConsumerAction,
    Event,
    StreamAction,
    consumer_action,
    consumer_pause,
    stream_action,
)
from jetcluster.model.codec import invalid_json, json_kind, loads
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.model.transforms import results_filter
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.records import dataclass
from jetcluster.stream.fields import REQUIRED_LEVEL, level_is_met

if TYPE_CHECKING:
    from jetcluster.api.spool import Spool
    from jetcluster.cluster.jetstream import JetStream

MAX_BODY_BYTES = 1024 * 1024
"""Bytes; a stream configuration is at most a few hundred KB."""
REQUEST_SECONDS = 3.9
"""Seconds within which a request is answered, also when other nodes must be asked: stock clients give up after 5 s.
Work that was begun may still be carried out then, as after any 503."""
SEED_CODES: Final = {
    errors.STREAM_NOT_FOUND: SEED_STREAM_NOT_FOUND,
    errors.SUBJECT_OVERLAP: 10059,
    errors.CONSUMER_NAME_EXISTS: 10071,
    10105: 10071,  # the consumer of that name is active
    errors.CONSUMER_EXISTS: 10071,
}
"""Error numbers of the specification, which nats-server gives to other errors. They are for answers of the API only:
clients know PubAcks by nats-server's numbers, and 10071 is "wrong last sequence" there."""
GUARDED: Final = b"Nats-Deliver-Guarded"
"""Header of a request that another node hands on for a client with restricted publishing: nothing is delivered to a
guarded subject (`Router.is_guarded`)."""


@dataclass(slots=True)
class Request:
    """One API request."""

    account: str
    subject: bytes
    """The subject as the client wrote it, a domain's prefix included."""
    args: tuple[str, ...]
    """The subject's tokens after the endpoint's own: stream name, consumer name."""
    reply: bytes
    headers: bytes
    payload: bytes
    origin: Origin
    bus: Bus
    strict: bool = False
    """Unknown keys of the body are refused."""
    events: list[Event] = field(default_factory=list)
    """Events of streams and consumers, which become advisories once the reply is out."""
    follow: Callable[[], Awaitable[None]] | None = None
    """Work that goes on after the reply, for as long as it takes (snapshot, restore)."""
    answered: Callable[[], None] | None = None
    """Called right after the reply is out."""
    _fields: dict[str, Any] | None = None

    @property
    def stream(self) -> str:
        return self.args[0]

    @property
    def fields(self) -> dict[str, Any]:
        """Returns the fields of the body, decoded once; {} without a body. Raises ApiError 10025 for a body that is no
        JSON object: no default may stand for it (a PURGE without a filter purges everything)."""
        if self._fields is None:
            self._fields = _object(self.payload) if self.payload.strip() else {}
        return self._fields

    def may_deliver_to(self, subject: str) -> bool:
        """Returns False for one of the server's own subjects (`$KV.b.k`), or one that asks another account, if the
        client may not publish there: deliveries to it would bypass the client's permissions. `subject` may be a filter
        of all deliver subjects. A client of another account is judged by what its account exports."""
        if GUARDED in self.headers and self.bus.is_guarded(subject.encode("utf-8", "replace")):
            return False
        return self.origin.account != self.account or self.origin.may_deliver_to(subject.encode("utf-8", "replace"))

    def may_republish(self, config: dict[str, Any], known: Mapping[str, Any] | None = None) -> bool:
        """Like `may_deliver_to`, for the subjects that a stream of this configuration republishes to. Those of its
        previous configuration (`known`) stay allowed."""
        given = config.get("republish")
        if not given or (known is not None and known.get("republish") == given):
            return True
        return self.may_deliver_to(results_filter(given["dest"]))

    def tell(self, stream: str, action: StreamAction) -> None:
        self.events.append(stream_action(stream, action))

    def tell_consumer(self, stream: str, consumer: str, action: ConsumerAction) -> None:
        self.events.append(consumer_action(stream, consumer, action))

    def tell_pause(self, stream: str, consumer: str, state: dict[str, Any]) -> None:
        """`state`: `paused`, and `pause_until` while it is."""
        self.events.append(consumer_pause(stream, consumer, state))

    def client(self) -> dict[str, Any]:
        """Returns the requester, for advisories: its account, and the details of a client of this node."""
        return {"acc": self.account, **self.origin.client_info()}


def _object(payload: bytes) -> dict[str, Any]:
    found = loads(payload)
    if not isinstance(found, dict):
        raise invalid_json(f"json: cannot unmarshal {json_kind(found)} into value of type object")
    return found


def check_target(request: Request, deliver_subject: str) -> None:
    """Returns ApiError 400/10112 for a consumer's deliver subject, "" included, that the client may not use."""
    if deliver_subject and not request.may_deliver_to(deliver_subject):
        raise by_code(errors.CONSUMER_DELIVER_SUBJECT)


def check_letters(request: Request, config: Mapping[str, Any]) -> None:
    """Raises ApiError 10052 for a consumer's dead letters to where the client may not publish, see `check_target`."""
    wish = dead_letters.wish_of(config)
    if wish is not None and not request.may_deliver_to(wish.pattern):
        raise invalid_config(f"{dead_letters.FIELD} subject is not permitted")


def check_api_level(headers: bytes) -> None:
    """ApiError 412/10185 when the request needs a newer API than ours (ADR-44)."""
    if headers and not level_is_met(header_block.get(headers, REQUIRED_LEVEL)):
        raise by_code(errors.REQUIRED_API_LEVEL)


def check_size(payload: bytes) -> None:
    """ApiError 400/10025 for a body that is too large to be worth decoding."""
    if len(payload) > MAX_BODY_BYTES:
        raise by_code(errors.INVALID_JSON, err=f"request exceeds {MAX_BODY_BYTES} bytes")


def renumbered(error: ApiError) -> ApiError:
    """The same error with the specification's number."""
    number = SEED_CODES.get(error.err_code)
    return error if number is None else ApiError(error.code, number, error.description)


@dataclass(slots=True)
class RequestCounters:
    """Requests answered on this node for one account: `api` in `$JS.API.INFO`."""

    total: int = 0
    errors: int = 0


@dataclass(slots=True)
class RestoreRoom:
    """The restores by clients of this node, of all accounts."""

    restores: int = 0
    held: int = 0
    """Bytes in memory that they have received and not passed on yet."""
    aside: Counter[str] = field(default_factory=Counter)
    """Bytes that they have set aside in files, by account."""


@dataclass(slots=True)
class ApiContext:
    """The services that handlers use; one per account."""

    cluster: JetStream
    clock: Clock
    rng: Rng
    log: Log
    server_name: str
    budget: LoopBudget
    """Runs work that would keep the loop too long, by account."""
    domain: str = ""
    limits: Callable[[str], AccountLimits] = field(default=lambda account: UNLIMITED)
    """Limits of an account, by name: its own limits and what the servers hold."""
    own_limits: Callable[[str], AccountLimits] = field(default=lambda account: UNLIMITED)
    """Limits that the configuration gives the account alone; `$JS.API.INFO` shows it."""
    strict: bool = False
    """`jetstream { strict: true }`: keys that a request does not have are refused with 10025."""
    compat: CompatOptions = field(default_factory=CompatOptions)
    """Settings of this node's decisions about requests; a reload replaces them."""
    restore_room: RestoreRoom = field(default_factory=RestoreRoom)
    spool: Callable[[], Spool] | None = None
    """Makes a file for what cannot be worked on as it comes."""
    spool_bytes: Callable[[], int] = field(default=lambda: sys.maxsize)
    """Bytes that those of this node may have together."""
    advise: Callable[[Event], None] = field(default=lambda event: None)
    """Publishes an event in the system account."""

    def advisories(self) -> Advisories:
        return Advisories(self.clock, self.rng, self.server_name, self.domain)

    def request_id(self) -> str:
        """Returns an id that is unique for ever: the meta group answers a repeated id with the first verdict."""
        return self.rng.token(12).hex()
