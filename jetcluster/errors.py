"""Every error that goes over the wire, as one table, and the tree of this project's exceptions.

The table's source is nats-server's errors.json. `err_code` is the stable number that clients test; `code` is HTTP-like
and decides the exception class in nats.py, so both must be right.

Each exception has the side to `blame`, and is `retriable` if the same request may succeed a moment later. A room's
exceptions belong to one of these families, and also to ValueError or OSError where callers catch those:

    JetclusterError        blame       retriable
    ├─ ApiError            caller for codes below 500, else jetcluster; retriable: those of `PASSING`
    ├─ CallerError         caller      no         a malformed, forbidden or impossible request
    │   AnotherAccountError, AuthError, BackupLockedError, BadRequestError, ContextError, CronError, FlagError,
    │   FreshnessError, MalformedRequest, NoSuchPointError, NoSuchStreamError, NoSystemUserError, OptionError,
    │   PresentError, QueryError, RescueRefusedError, RestoreRefusedError, SchemaError, ServerRefusedError,
    │   SignalError, StatusError, SystemRequestError, TooManyConsumersError, TransformError
    ├─ PeerError           peer        no         invalid bytes of a client, a node, a log or an archive
    │   ArchiveDamagedError, ArchiveError, BatchError, CertificateError, CodecError, CommandError, FrameError,
    │   HandshakeError, LoginError, MembersError, MisfitError, MissingFieldError, ProtocolError, Refused, S2Error,
    │   WebSocketError
    ├─ OperatorError       operator    no         a wrong configuration, key or file
    │   AccountStoreError, BackupStorageError, ClaimsError, ConfigError, FieldError, FormatError, HeldPortError,
    │   IdentityError, KeyringError, ListenError, MonitorError, PidFileError, PortsFileError, RecordError,
    │   RefusedImportError, RemovedStoreError, RescueStoreError, StorageError
    ├─ DiskError           disk        no         stored data that cannot be read or written: rebuilt from a replica
    │   AskedError, DamagedBackupError, DamagedError, FastRowError, GuardRowError, JournalDamageError, KvError,
    │   MissingError, SealError, SpoolError, StateError, StreamJobError
    ├─ PassingError        nobody      yes        a temporary state: no leader, no link, no room, no answer yet
    │   BusyError, ChangedError, ConflictError, ConnectionLostError, IncompleteError, ListChangedError, LostViewError,
    │   MeshError (but not one that is the peer's no), NoRespondersError, OutcomeUnknownError, ReplicaLagError,
    │   RequestTimeoutError, SearchError, SetBackError, SnapshotEndedError, StorageAwayError, StreamUnsteadyError,
    │   UnansweredError, UnderWayError, WorkerAbsentError, RaftError (but EntryTooLargeError and MembershipError: the
    │   caller's)
    └─ of tools and jobs   jetcluster  no         errors that end a command, a job or a query with a text of its own
        ArchiveLossError, ClusterError, CredentialsError, CutError, DataLossError, DemoError, FenceError, JobError,
        NotAnArchiveError, NotReachedError, NotTheArchiveError, PublishError, ServerError, SinkError, StreamError, and
        the private _DamagedSegmentError, _MadeAgainError, _RefusedError
"""

from __future__ import annotations

import json
from typing import Any, Final

TABLE: Final[dict[int, tuple[int, str]]] = {
    10002: (400, "resource limits exceeded for account"),
    10003: (400, "bad request"),
    10004: (503, "incomplete results"),
    10005: (400, "{err}"),
    10006: (500, "JetStream not in clustered mode"),
    10007: (500, "JetStream cluster not assigned to this server"),
    10008: (503, "JetStream system temporarily unavailable"),
    10009: (500, "JetStream cluster can not handle request"),
    10010: (503, "JetStream clustering support required"),
    10011: (400, "tags placement not supported for operation"),
    10012: (500, "{err}"),
    10013: (400, "consumer name already in use"),
    10014: (404, "consumer not found"),
    10015: (400, "deliver subject not valid"),
    10016: (400, "consumer expected to be durable but no durable name set in subject"),
    10017: (400, "consumer name in subject does not match durable name in request"),
    10018: (400, "consumer expected to be durable but a durable name was not set"),
    10019: (400, "consumer expected to be ephemeral but detected a durable name set in subject"),
    10020: (400, "consumer expected to be ephemeral but a durable name was set in request"),
    10021: (400, "stream external api prefix {prefix} must not overlap with {subject}"),
    10022: (400, "stream external delivery prefix {prefix} overlaps with stream subject {subject}"),
    10023: (503, "insufficient resources"),
    10024: (400, "stream external delivery prefix {prefix} must not contain wildcards"),
    10025: (400, "invalid JSON: {err}"),
    10026: (400, "maximum consumers limit reached"),
    10027: (400, "maximum number of streams reached"),
    10028: (500, "insufficient memory resources available"),
    10029: (500, "{err}"),
    10030: (400, "stream mirror must have max message size >= source"),
    10031: (400, "stream mirrors can not also contain other sources"),
    10032: (400, "stream mirrors can not have both start seq and start time configured"),
    10033: (400, "stream mirrors can not contain filtered subjects"),
    10034: (400, "stream mirrors can not contain subjects"),
    10035: (503, "account not found"),
    10036: (503, "not currently supported in clustered mode"),
    10037: (404, "no message found"),
    10038: (400, "expected an empty request payload"),
    10039: (503, "JetStream not enabled for account"),
    10040: (400, "peer not a member"),
    10041: (500, "{err}"),
    10042: (500, "JetStream unable to subscribe to restore snapshot {subject}: {err}"),
    10043: (400, "sequence {seq} not found"),
    10044: (400, "server is not a member of the cluster"),
    10045: (500, "{err}"),
    10046: (400, "stream source must have max message size >= target"),
    10047: (500, "insufficient storage resources available"),
    10048: (500, "{err}"),
    10049: (500, "{err}"),
    10050: (500, "{err}"),
    10051: (500, "{err}"),
    10052: (500, "{err}"),
    10053: (500, "{err}"),
    10054: (400, "message size exceeds maximum allowed"),
    10055: (400, "stream mirror configuration can not be updated"),
    10056: (400, "stream name in subject does not match request"),
    10057: (500, "{err}"),
    10058: (400, "stream name already in use with a different configuration"),
    10059: (404, "stream not found"),
    10060: (400, "expected stream does not match"),
    10061: (400, "Replicas configuration can not be updated"),
    10062: (500, "restore failed: {err}"),
    10063: (503, "expected stream sequence does not match"),
    10064: (500, "snapshot failed: {err}"),
    10065: (400, "subjects overlap with an existing stream"),
    10069: (500, "{err}"),
    10070: (400, "wrong last msg ID: {id}"),
    10071: (400, "wrong last sequence: {seq}"),
    10072: (500, "JetStream unable to open temp storage for restore"),
    10074: (500, "replicas > 1 not supported in non-clustered mode"),
    10075: (503, "peer remap failed"),
    10076: (503, "JetStream not enabled"),
    10077: (503, "{err}"),
    10078: (400, "consumer config required"),
    10079: (400, "consumer deliver subject has wildcards"),
    10080: (400, "consumer in push mode can not set max waiting"),
    10081: (400, "consumer deliver subject forms a cycle"),
    10082: (400, "consumer requires ack policy for max ack pending"),
    10083: (400, "consumer idle heartbeat needs to be >= 100ms"),
    10084: (400, "consumer in pull mode requires explicit ack policy on workqueue stream"),
    10085: (400, "consumer in pull mode requires a durable name"),
    10086: (400, "consumer in pull mode can not have rate limit set"),
    10087: (400, "consumer max waiting needs to be positive"),
    10088: (400, "consumer idle heartbeat requires a push based consumer"),
    10089: (400, "consumer flow control requires a push based consumer"),
    10090: (400, "consumer direct requires a push based consumer"),
    10091: (400, "consumer direct requires an ephemeral consumer"),
    10092: (400, "consumer direct on a mapped consumer"),
    10093: (400, "consumer filter subject is not a valid subset of the interest subjects"),
    10094: (400, "{err}"),
    10095: (400, "failed to parse consumer sampling configuration: {err}"),
    10096: (500, "stream not valid"),
    10097: (400, "header size exceeds maximum allowed of 64k"),
    10098: (400, "workqueue stream requires explicit ack"),
    10099: (400, "multiple non-filtered consumers not allowed on workqueue stream"),
    10100: (400, "filtered consumer not unique on workqueue stream"),
    10101: (400, "consumer must be deliver all on workqueue stream"),
    10102: (400, "consumer name is too long, maximum allowed is {max}"),
    10103: (400, "durable name can not contain '.', '*', '>'"),
    10104: (500, "error creating store for consumer: {err}"),
    10105: (400, "consumer already exists and is still active"),
    10106: (400, "consumer replacement durable config not the same"),
    10107: (400, "consumer description is too long, maximum allowed is {max}"),
    10108: (400, "consumer with flow control also needs heartbeats"),
    10109: (400, "invalid operation on sealed stream"),
    10110: (500, "{err}"),
    10111: (500, "{err}"),
    10112: (400, "invalid push consumer deliver subject"),
    10113: (400, "account requires a stream config to have max bytes set"),
    10114: (400, "consumer max request batch needs to be > 0"),
    10115: (400, "consumer max request expires needs to be >= 1ms"),
    10116: (400, "max deliver is required to be > length of backoff values"),
    10117: (500, "subject details would exceed maximum allowed"),
    10118: (500, "stream is offline"),
    10119: (500, "consumer is offline"),
    10120: (400, "no JetStream default or applicable tiered limit present"),
    10121: (400, "consumer max ack pending exceeds system limit of {limit}"),
    10122: (400, "stream max bytes exceeds account limit max stream bytes"),
    10123: (400, "can not move and scale a stream in a single update"),
    10124: (400, "stream move already in progress"),
    10125: (400, "consumer max request batch exceeds server limit of {limit}"),
    10126: (400, "consumer config replica count exceeds parent stream"),
    10127: (400, "Consumer name can not contain path separators"),
    10128: (400, "Stream name can not contain path separators"),
    10129: (400, "stream reconfiguration not in progress"),
    10130: (400, "stream name already in use, cannot restore"),
    10131: (400, "Consumer create request did not match filtered subject from create subject"),
    10132: (400, "Consumer Durable and Name have to be equal if both are provided"),
    10133: (400, "replicas count cannot be negative"),
    10134: (400, "consumer config replicas must match interest retention stream's replicas"),
    10135: (400, "consumer metadata exceeds maximum size of {limit}"),
    10136: (400, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    10137: (400, "consumer with multiple subject filters cannot use subject based API"),
    10138: (400, "consumer subject filters cannot overlap"),
    10139: (400, "consumer filter in FilterSubjects cannot be empty"),
    10140: (400, "duplicate source configuration detected"),
    10141: (400, "sourced stream name is invalid"),
    10142: (400, "mirrored stream name is invalid"),
    10143: (400, "stream mirrors can not have first sequence configured"),
    10144: (400, "source with multiple subject transforms cannot also have a single subject filter"),
    10145: (400, "source transform source: {err}"),
    10146: (400, "source transform: {err}"),
    10147: (400, "source filters can not overlap"),
    10148: (400, "consumer already exists"),
    10149: (400, "consumer does not exist"),
    10150: (400, "mirror with multiple subject transforms cannot also have a single subject filter"),
    10151: (400, "mirror transform source: {err}"),
    10152: (400, "mirror subject filters can not overlap"),
    10153: (400, "consumer inactive threshold exceeds system limit of {limit}"),
    10154: (400, "mirror transform: {err}"),
    10155: (400, "stream transform source: {err}"),
    10156: (400, "stream transform: {err}"),
    10157: (400, "pedantic mode: {err}"),
    10158: (409, "duplicate message id is in process"),
    10159: (400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    10160: (400, "Provided priority group does not exist for this consumer"),
    10161: (400, "Group name cannot be an empty string"),
    10162: (400, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"),
    10163: (503, "expected last sequence per subject temporarily unavailable"),
    10164: (400, "wrong last sequence"),
    10165: (400, "invalid per-message TTL"),
    10166: (400, "per-message TTL is disabled"),
    10167: (429, "too many requests"),
    10168: (400, "message counters is disabled"),
    10169: (400, "message counter increment is missing"),
    10170: (400, "message counter has payload"),
    10171: (400, "message counter increment is invalid"),
    10172: (400, "message counter is broken"),
    10173: (400, "stream mirrors can not also calculate counters"),
    10174: (400, "atomic publish is disabled"),
    10175: (400, "atomic publish sequence is missing"),
    10176: (400, "atomic publish batch is incomplete"),
    10177: (400, "atomic publish unsupported header used: {header}"),
    10178: (400, "priority groups can not be used with push consumers"),
    10179: (400, "atomic publish batch ID is invalid"),
    10180: (412, "min last sequence"),
    10181: (400, "consumer ack policy invalid"),
    10182: (400, "consumer replay policy invalid"),
    10183: (400, "consumer ack wait needs to be positive"),
    10184: (400, "consumer backoff needs to be positive"),
    10185: (412, "JetStream minimum api level required"),
    10186: (400, "stream mirrors can not also schedule messages"),
    10187: (400, "stream source can not also schedule messages"),
    10188: (400, "message schedules is disabled"),
    10189: (400, "message schedules pattern is invalid"),
    10190: (400, "message schedules target is invalid"),
    10191: (400, "message schedules invalid per-message TTL"),
    10192: (400, "message schedules invalid rollup"),
    10193: (400, "missing sequence for expected last sequence per subject"),
    10194: (500, "stream is offline: {err}"),
    10195: (500, "consumer is offline: {err}"),
    10196: (400, "consumer can not have priority groups when policy is none"),
    10197: (400, "PinnedTTL cannot be set when PriorityPolicy is none"),
    10198: (400, "stream mirrors can not also use atomic publishing"),
    10199: (400, "atomic publish batch is too large: {size}"),
    10200: (400, "atomic publish batch commit is invalid"),
    10201: (400, "atomic publish batch contains duplicate message id"),
    10202: (400, "cluster member change is in progress"),
    10203: (400, "message schedules source is invalid"),
    10204: (400, "invalid reset: {err}"),
    10205: (400, "batch publish is disabled"),
    10206: (400, "batch publish pattern is invalid"),
    10207: (400, "batch publish ID is invalid"),
    10208: (400, "batch publish ID unknown"),
    10209: (400, "stream mirrors can not also use batch publishing"),
    10210: (429, "atomic publish too many inflight"),
    10211: (429, "batch publish too many inflight"),
    10212: (400, "message schedules invalid scheduler"),
    10213: (400, "stream mirror consumer config is invalid"),
    10214: (400, "stream mirror consumer requires flow control ack policy"),
    10215: (400, "stream source consumer config is invalid"),
    10216: (400, "duplicate stream source consumer detected"),
    10217: (400, "stream source consumer requires flow control ack policy"),
    10218: (400, "flow control ack policy requires a push based consumer"),
    10219: (400, "flow control ack policy requires flow control"),
    10220: (400, "flow control ack policy requires max ack pending"),
    10221: (400, "flow control ack policy requires unset ack wait"),
    10222: (400, "flow control ack policy requires unset max deliver"),
    10223: (400, "message schedules time zone is invalid"),
    10224: (400, "JetStream system rescue not applied: {err}"),
    10225: (400, "consumer's stream identity does not match: {msg}"),
    10226: (400, "stream reconfiguration already in progress"),
    10227: (400, "message stream source header is not allowed"),
    10228: (500, "stream source consumer stalled on flow control"),
    # Ours, of the object service on `$OBJ.<bucket>`; nats-server has no such codes.
    11001: (404, "object not found"),
    11002: (404, "upload not found"),
    11003: (400, "object size or chunks do not match: {err}"),
    11004: (400, "object digest does not match"),
    11005: (400, "invalid object metadata: {err}"),
    11006: (404, "object is deleted"),
    11007: (400, "deliver_subject is not valid"),
    11008: (400, "upload was aborted: {err}"),
    11009: (400, "object is too large for a list"),
}
"""err_code -> (HTTP-like code, description template). A template `{err}` carries the text of the cause."""

PASSING: Final = frozenset(
    {
        10004,  # not all servers have answered
        10007,  # the server does not know its part of the asset yet
        10008,  # no leader, or none that answers
        10009,  # likewise
        10023,  # too many restores in progress
        10076,  # the server is shutting down
        10118,  # all replicas are offline
        10119,
        10124,  # a change of members, or a move, is in progress
        10158,  # the same message is on its way into the log
        10163,  # as is another one of its subject
        10167,  # too many requests
        10202,
        10210,  # too many batches
        10211,
        10226,
    }
)
"""The temporary errors: the same request may succeed a moment later. All others last until something is changed, even
those with code 503 that are missing here: a full store or account, an account without JetStream, a server without a
cluster."""

# The numbers that this project's code names; the others are reached through `by_code`.
ACCOUNT_FULL: Final = 10002
BAD_REQUEST: Final = 10003
NO_SUITABLE_PEERS: Final = 10005
NOT_AVAILABLE: Final = 10008
CLUSTER_REQUIRED: Final = 10010
CONSUMER_CREATE_FAILED: Final = 10012
CONSUMER_NAME_EXISTS: Final = 10013
CONSUMER_NOT_FOUND: Final = 10014
SNAPSHOT_DELIVER_SUBJECT: Final = 10015
CONSUMER_NAME_MISMATCH: Final = 10017
DURABLE_NAME_MISSING: Final = 10018
DURABLE_NAME_NOT_ALLOWED: Final = 10020
INSUFFICIENT_RESOURCES: Final = 10023
INVALID_JSON: Final = 10025
MAX_CONSUMERS: Final = 10026
MAX_STREAMS: Final = 10027
NO_MESSAGE_FOUND: Final = 10037
NOT_EMPTY_REQUEST: Final = 10038
NOT_ENABLED_FOR_ACCOUNT: Final = 10039
PEER_NOT_MEMBER: Final = 10040
MEMBER_CHANGE_REFUSED: Final = 10041
SERVER_NOT_MEMBER: Final = 10044
STREAM_GENERAL: Final = 10051
INVALID_CONFIG: Final = 10052
MESSAGE_TOO_LARGE: Final = 10054
MIRROR_NOT_UPDATABLE: Final = 10055
STREAM_MISMATCH: Final = 10056
STREAM_NAME_EXISTS: Final = 10058
STREAM_NOT_FOUND: Final = 10059
RESTORE_FAILED: Final = 10062
SEED_STREAM_NOT_FOUND: Final = 10039
"""The specification's number, with code 404 (`compat { seed_error_codes }`)."""
SUBJECT_OVERLAP: Final = 10065
UPDATE_FAILED: Final = 10069
WRONG_LAST_SEQUENCE: Final = 10071
REPLICAS_NOT_SUPPORTED: Final = 10074
PEER_REMAP: Final = 10075
STORE_FAILED: Final = 10077
STREAM_SEALED: Final = 10109
PURGE_FAILED: Final = 10110
CONSUMER_DELIVER_SUBJECT: Final = 10112
STREAM_OFFLINE: Final = 10118
MAX_ACK_PENDING_EXCESS: Final = 10121
MOVE_IN_PROGRESS: Final = 10124
PATH_SEPARATORS: Final = 10128
NO_RECONFIGURATION: Final = 10129
STREAM_NAME_TAKEN: Final = 10130
FILTER_SUBJECT_MISMATCH: Final = 10131
NEGATIVE_REPLICAS: Final = 10133
FILTER_SUBJECTS_IN_SUBJECT: Final = 10137
CONSUMER_EXISTS: Final = 10148
CONSUMER_NOT_EXISTING: Final = 10149
PEDANTIC: Final = 10157
TOO_MANY_REQUESTS: Final = 10167
MIN_LAST_SEQUENCE: Final = 10180
REQUIRED_API_LEVEL: Final = 10185
INVALID_RESET: Final = 10204
RESCUE_REFUSED: Final = 10224
RECONFIGURATION_IN_PROGRESS: Final = 10226
OBJECT_NOT_FOUND: Final = 11001
UPLOAD_NOT_FOUND: Final = 11002
OBJECT_MISMATCH: Final = 11003
OBJECT_DIGEST: Final = 11004
OBJECT_METADATA: Final = 11005
OBJECT_DELETED: Final = 11006
OBJECT_DELIVER_SUBJECT: Final = 11007
UPLOAD_ABORTED: Final = 11008
OBJECT_TOO_LARGE_FOR_LIST: Final = 11009


class JetclusterError(Exception):
    """Base of the exceptions that this project raises on purpose."""

    blame = "jetcluster"
    """The side that can correct it: caller, peer, operator, disk, nobody (it passes), jetcluster (maybe a defect)."""
    retriable = False
    """True if the same request may succeed a moment later."""


class CallerError(JetclusterError):
    """A malformed, forbidden or impossible request or value."""

    blame = "caller"


class PeerError(JetclusterError):
    """A protocol violation by the other end, or by the writer of these bytes."""

    blame = "peer"


class OperatorError(JetclusterError):
    """A wrong configuration, key or file."""

    blame = "operator"


class DiskError(JetclusterError):
    """A failure of the disk, or damaged data on it."""

    blame = "disk"


class PassingError(JetclusterError):
    """A temporary condition, which may end a moment later."""

    blame = "nobody"
    retriable = True


class ApiError(JetclusterError):
    """An error as a client sees it: `code` (HTTP-like), `err_code` (five digits), `description`."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description
        self.blame = "caller" if code < 500 else "jetcluster"
        self.retriable = err_code in PASSING if err_code in TABLE else code in (429, 503)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON `error` object. It must have exactly these keys: nats.py passes them as keyword arguments, so
        a fourth one would be a TypeError in every client."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}

    @classmethod
    def from_dict(cls, error: dict[str, Any]) -> ApiError:
        """Rebuild an error from `to_dict` (errors go between nodes as JSON)."""
        return cls(int(error["code"]), int(error["err_code"]), str(error["description"]))

    @property
    def is_stream_not_found(self) -> bool:
        """True for nats-server's number and the specification's: a client cannot know which one its server uses."""
        return self.code == 404 and self.err_code in (STREAM_NOT_FOUND, SEED_STREAM_NOT_FOUND)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiError) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.code, self.err_code, self.description))


def by_code(err_code: int, **fields: object) -> ApiError:
    """Return the table's error, with placeholders filled. Raises KeyError for an unknown code or missing field."""
    code, template = TABLE[err_code]
    return ApiError(code, err_code, template.format(**fields) if "{" in template else template)


def render(err_code: int, **fields: object) -> bytes:
    """Return the JSON `error` object as bytes, for replies that are built without a dict (PubAcks)."""
    return json.dumps(by_code(err_code, **fields).to_dict(), separators=(",", ":")).encode()


def invalid_config(text: str) -> ApiError:
    """Return 10052, for a stream configuration that breaks a rule; code 500 for a user's error, as in nats-server."""
    return by_code(INVALID_CONFIG, err=text)
