"""Every error that goes over the wire, as one table, and the exceptions that carry one.

Source: nats-server's errors.json by way of shared/reference/streams.md section 9. `err_code` is the stable number
that clients test; `code` is HTTP-like and decides the exception class in nats.py, so both must be right.
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
    10013: (400, "consumer name already in use"),
    10014: (404, "consumer not found"),
    10015: (400, "deliver subject not valid"),
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
    10096: (500, "stream not valid"),
    10097: (400, "header size exceeds maximum allowed of 64k"),
    10105: (400, "consumer already exists and is still active"),
    10109: (400, "invalid operation on sealed stream"),
    10110: (500, "{err}"),
    10111: (500, "{err}"),
    10113: (400, "account requires a stream config to have max bytes set"),
    10117: (500, "subject details would exceed maximum allowed"),
    10118: (500, "stream is offline"),
    10120: (400, "no JetStream default or applicable tiered limit present"),
    10122: (400, "stream max bytes exceeds account limit max stream bytes"),
    10123: (400, "can not move and scale a stream in a single update"),
    10124: (400, "stream move already in progress"),
    10128: (400, "Stream name can not contain path separators"),
    10129: (400, "stream reconfiguration not in progress"),
    10130: (400, "stream name already in use, cannot restore"),
    10133: (400, "replicas count cannot be negative"),
    10140: (400, "duplicate source configuration detected"),
    10141: (400, "sourced stream name is invalid"),
    10142: (400, "mirrored stream name is invalid"),
    10143: (400, "stream mirrors can not have first sequence configured"),
    10144: (400, "source with multiple subject transforms cannot also have a single subject filter"),
    10145: (400, "source transform source: {err}"),
    10146: (400, "source transform: {err}"),
    10147: (400, "source filters can not overlap"),
    10148: (400, "consumer already exists"),
    10150: (400, "mirror with multiple subject transforms cannot also have a single subject filter"),
    10151: (400, "mirror transform source: {err}"),
    10152: (400, "mirror subject filters can not overlap"),
    10154: (400, "mirror transform: {err}"),
    10155: (400, "stream transform source: {err}"),
    10156: (400, "stream transform: {err}"),
    10157: (400, "pedantic mode: {err}"),
    10158: (409, "duplicate message id is in process"),
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
    10179: (400, "atomic publish batch ID is invalid"),
    10180: (412, "min last sequence"),
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
    10198: (400, "stream mirrors can not also use atomic publishing"),
    10199: (400, "atomic publish batch is too large: {size}"),
    10200: (400, "atomic publish batch commit is invalid"),
    10201: (400, "atomic publish batch contains duplicate message id"),
    10202: (400, "cluster member change is in progress"),
    10203: (400, "message schedules source is invalid"),
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
    10223: (400, "message schedules time zone is invalid"),
    10224: (400, "JetStream system rescue not applied: {err}"),
    10225: (400, "consumer's stream identity does not match: {msg}"),
    10226: (400, "stream reconfiguration already in progress"),
    10227: (400, "message stream source header is not allowed"),
}
"""err_code -> (HTTP-like code, description template). A template `{err}` carries the text of the cause."""

# The numbers that our code names; the others are reached through `by_code`.
BAD_REQUEST: Final = 10003
NO_SUITABLE_PEERS: Final = 10005
NOT_AVAILABLE: Final = 10008
CLUSTER_REQUIRED: Final = 10010
INSUFFICIENT_RESOURCES: Final = 10023
INVALID_JSON: Final = 10025
MAX_STREAMS: Final = 10027
NOT_SUPPORTED: Final = 10036
NO_MESSAGE_FOUND: Final = 10037
NOT_EMPTY_REQUEST: Final = 10038
NOT_ENABLED_FOR_ACCOUNT: Final = 10039
SEQUENCE_NOT_FOUND: Final = 10043
STREAM_GENERAL: Final = 10051
INVALID_CONFIG: Final = 10052
MESSAGE_TOO_LARGE: Final = 10054
MIRROR_NOT_UPDATABLE: Final = 10055
STREAM_MISMATCH: Final = 10056
MSG_DELETE_FAILED: Final = 10057
STREAM_NAME_EXISTS: Final = 10058
STREAM_NOT_FOUND: Final = 10059
WRONG_EXPECTED_STREAM: Final = 10060
SUBJECT_OVERLAP: Final = 10065
WRONG_LAST_MSG_ID: Final = 10070
WRONG_LAST_SEQUENCE: Final = 10071
REPLICAS_NOT_SUPPORTED: Final = 10074
NOT_ENABLED: Final = 10076
STORE_FAILED: Final = 10077
HEADER_TOO_LARGE: Final = 10097
STREAM_SEALED: Final = 10109
PURGE_FAILED: Final = 10110
STREAM_OFFLINE: Final = 10118
PATH_SEPARATORS: Final = 10128
NEGATIVE_REPLICAS: Final = 10133
WRONG_LAST_SEQUENCE_CONSTANT: Final = 10164
TOO_MANY_REQUESTS: Final = 10167
REQUIRED_API_LEVEL: Final = 10185


class JetclusterError(Exception):
    """Base of the exceptions that this project raises on purpose."""


class ApiError(JetclusterError):
    """An error as a client sees it: `code` (HTTP-like), `err_code` (five digits), `description`."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description

    def to_dict(self) -> dict[str, Any]:
        """The JSON `error` object. Exactly these three keys: nats.py passes them as keyword arguments to its
        exception, a fourth one is a TypeError inside every client (streams.md L1)."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}

    @classmethod
    def from_dict(cls, error: dict[str, Any]) -> ApiError:
        """Rebuilds what `to_dict` made (errors cross between nodes as JSON)."""
        return cls(int(error["code"]), int(error["err_code"]), str(error["description"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiError) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.code, self.err_code, self.description))


def by_code(err_code: int, **fields: object) -> ApiError:
    """The error of the table, placeholders filled. KeyError: unknown code, or a placeholder not given."""
    code, template = TABLE[err_code]
    return ApiError(code, err_code, template.format(**fields) if "{" in template else template)


def render(err_code: int, **fields: object) -> bytes:
    """The JSON `error` object as bytes, for replies that are put together without a dict (PubAcks)."""
    return json.dumps(by_code(err_code, **fields).to_dict(), separators=(",", ":")).encode()


def invalid_config(text: str) -> ApiError:
    """10052: a stream configuration that breaks a rule. HTTP code 500 although it is the user's error, as upstream."""
    return by_code(INVALID_CONFIG, err=text)
