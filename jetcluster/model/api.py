"""Bodies of the stream API's requests (shared/reference/streams.md 5.2)."""

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


class StepdownRequest(WireModel):
    placement: Placement | None = None
