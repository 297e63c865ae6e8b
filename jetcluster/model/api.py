"""Bodies of the stream API's requests."""

from __future__ import annotations

from jetcluster.model.base import Int64, UInt64, WireModel
from jetcluster.model.stream import Placement, StreamConfig


class StreamConfigRequest(StreamConfig):
    """STREAM.CREATE and STREAM.UPDATE."""

    pedantic: bool = False


class StreamInfoRequest(WireModel):
    """STREAM.INFO."""

    deleted_details: bool = False
    subjects_filter: str = ""
    offset: Int64 = 0


class PageRequest(WireModel):
    """STREAM.NAMES, STREAM.LIST, CONSUMER.NAMES, CONSUMER.LIST."""

    offset: Int64 = 0
    subject: str = ""


class PurgeRequest(WireModel):
    """STREAM.PURGE."""

    filter: str = ""
    seq: UInt64 = 0
    keep: UInt64 = 0


class MsgDeleteRequest(WireModel):
    """STREAM.MSG.DELETE."""

    seq: UInt64 = 0
    no_erase: bool = False


class SnapshotRequest(WireModel):
    """STREAM.SNAPSHOT. `jsck` and the specification's `check_msgs` have no effect: every block is always verified."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: Int64 = 0
    window_size: Int64 = 0
    jsck: bool = False
    check_msgs: bool = False


class RestoreState(WireModel):
    """The state of an archived stream."""

    last_seq: UInt64 = 0
    bytes: UInt64 = 0


class RestoreRequest(WireModel):
    """STREAM.RESTORE."""

    config: StreamConfig | None = None
    state: RestoreState | None = None


class PeerRequest(WireModel):
    """PEER.REMOVE and PEER.EVACUATE of a stream or a consumer, with a server's name or its peer id."""

    peer: str = ""


class StepdownRequest(WireModel):
    """LEADER.STEPDOWN of a stream, a consumer or the meta group."""

    placement: Placement | None = None


class ServerRequest(WireModel):
    """SERVER.REMOVE and SERVER.EVACUATE: a server's name or its peer id, which wins. Only this server has `cancel`."""

    peer: str = ""
    peer_id: str = ""
    cancel: bool = False


class RescueRequest(WireModel):
    """META.RESCUE, with the number of servers that are left."""

    quorum_needed: Int64 = 0
