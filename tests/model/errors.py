"""Errors of the API: number, status and text, as the reference lists them."""

from __future__ import annotations

from typing import Any

STATUS = {
    10003: (400, "bad request"),
    10012: (500, ""),
    10013: (400, "consumer name already in use"),
    10014: (404, "consumer not found"),
    10017: (400, "consumer name in subject does not match durable name in request"),
    10018: (400, "consumer expected to be durable but a durable name was not set"),
    10020: (400, "consumer expected to be ephemeral but a durable name was set in request"),
    10026: (400, "maximum consumers limit reached"),
    10037: (404, "no message found"),
    10038: (400, "expected an empty request payload"),
    10043: (400, "sequence {} not found"),
    10052: (500, ""),
    10054: (400, "message size exceeds maximum allowed"),
    10056: (400, "stream name in subject does not match request"),
    10057: (500, ""),
    10058: (400, "stream name already in use with a different configuration"),
    10059: (404, "stream not found"),
    10060: (400, "expected stream does not match"),
    10065: (400, "subjects overlap with an existing stream"),
    10070: (400, "wrong last msg ID: {}"),
    10071: (400, "wrong last sequence: {}"),
    10074: (500, "replicas > 1 not supported in non-clustered mode"),
    10077: (503, ""),
    10079: (400, "consumer deliver subject has wildcards"),
    10080: (400, "consumer in push mode can not set max waiting"),
    10081: (400, "consumer deliver subject forms a cycle"),
    10082: (400, "consumer requires ack policy for max ack pending"),
    10083: (400, "consumer idle heartbeat needs to be >= 100ms"),
    10084: (400, "consumer in pull mode requires explicit ack policy on workqueue stream"),
    10086: (400, "consumer in pull mode can not have rate limit set"),
    10088: (400, "consumer idle heartbeat requires a push based consumer"),
    10089: (400, "consumer flow control requires a push based consumer"),
    10094: (400, ""),
    10098: (400, "workqueue stream requires explicit ack"),
    10099: (400, "multiple non-filtered consumers not allowed on workqueue stream"),
    10100: (400, "filtered consumer not unique on workqueue stream"),
    10101: (400, "consumer must be deliver all on workqueue stream"),
    10108: (400, "consumer with flow control also needs heartbeats"),
    10109: (400, "invalid operation on sealed stream"),
    10110: (500, ""),
    10111: (500, ""),
    10115: (400, "consumer max expires needs to be >= 1ms"),
    10116: (400, "max deliver is required to be > length of backoff values"),
    10131: (400, "Consumer create request did not match filtered subject from create subject"),
    10136: (400, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    10137: (400, "consumer with multiple subject filters cannot use subject based API"),
    10138: (400, "consumer subject filters cannot overlap"),
    10139: (400, "consumer filter in FilterSubjects cannot be empty"),
    10148: (400, "consumer already exists"),
    10149: (400, "consumer does not exist"),
    10159: (400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    10160: (400, "Provided priority group does not exist for this consumer"),
    10161: (400, "Group name cannot be an empty string"),
    10162: (400, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"),
    10164: (400, "wrong last sequence"),
    10165: (400, "invalid per-message TTL"),
    10166: (400, "per-message TTL is disabled"),
    10168: (400, "message counters is disabled"),
    10169: (400, "message counter increment is missing"),
    10170: (400, "message counter has payload"),
    10171: (400, "message counter increment is invalid"),
    10174: (400, "atomic publish is disabled"),
    10175: (400, "atomic publish sequence is missing"),
    10176: (400, "atomic publish batch is incomplete"),
    10177: (400, "atomic publish unsupported header used: {}"),
    10178: (400, "priority groups can not be used with push consumers"),
    10179: (400, "atomic publish batch ID is invalid"),
    10193: (400, "missing sequence for expected last sequence per subject"),
    10196: (400, "consumer can not have priority groups when policy is none"),
    10199: (400, "atomic publish batch is too large: {}"),
    10200: (400, "atomic publish batch commit is invalid"),
    10201: (400, "atomic publish batch contains duplicate message id"),
    10204: (400, ""),
}


class Refused(Exception):
    """A request is answered with this error."""

    def __init__(self, err_code: int, *parts: object, text: Any = "") -> None:
        """`text`: of an error whose text is its cause; `parts` fill the others'."""
        super().__init__(err_code, *parts)
        code, known = STATUS[err_code]
        self.error = {"code": code, "err_code": err_code, "description": text or known.format(*parts)}
