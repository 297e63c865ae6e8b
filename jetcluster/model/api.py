"""Bodies of the stream API's requests."""

from __future__ import annotations

from jetcluster.model.base import Int64, UInt64, WireModel
from jetcluster.model.stream import Placement, StreamConfig


class StreamConfigRequest(StreamConfig):
    """STREAM.CREATE and STREAM.UPDATE."""

    pedantic: bool = False


class StreamInfoRequest(WireModel):
    deleted_details: bool = False
    subjects_filter: str = ""
    offset: Int64 = 0


class PageRequest(WireModel):
    """STREAM.NAMES, STREAM.LIST, CONSUMER.NAMES, CONSUMER.LIST."""

    offset: Int64 = 0
    subject: str = ""


class PurgeRequest(WireModel):
    filter: str = ""
    seq: UInt64 = 0
    keep: UInt64 = 0


class MsgDeleteRequest(WireModel):
    seq: UInt64 = 0
    no_erase: bool = False


class SnapshotRequest(WireModel):
    """`jsck` and the seed's `check_msgs`: every block is verified in any case."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: Int64 = 0
    window_size: Int64 = 0
    jsck: bool = False
    check_msgs: bool = False


class RestoreState(WireModel):
    last_seq: UInt64 = 0
    bytes: UInt64 = 0


class RestoreRequest(WireModel):
    config: StreamConfig | None = None
    state: RestoreState | None = None


class PeerRequest(WireModel):
    """A server's name, or its peer id."""

    peer: str = ""


class StepdownRequest(WireModel):
    placement: Placement | None = None


class ServerRequest(WireModel):
    """SERVER.REMOVE and SERVER.EVACUATE: a server's name, or its peer id, which wins. `cancel` is ours."""

    peer: str = ""
    peer_id: str = ""
    cancel: bool = False


class RescueRequest(WireModel):
    """META.RESCUE: how many servers are left."""

    quorum_needed: Int64 = 0
