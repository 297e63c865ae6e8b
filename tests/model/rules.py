"""Where servers differ from each other, and none is wrong: each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True, frozen=True)
class Rules:
    """Those of this server; `PEERS` has nats-server's."""

    auto_allow_direct: bool = True
    """`max_msgs_per_subject` turns `allow_direct` on: one of the field's specifications wants it (docs/compatibility.md)."""
    headers_of_messages: bool = True
    """MSG.GET shows headers as an object besides `hdrs`, as the specification has them."""
    empty_lists: bool = True
    """A list without an element is a list; nats-server says null for names of streams."""
    stream_first: bool = True
    """Whether there is such a stream is looked at before what the request says; a single nats-server does it after."""
    duplicates_first: bool = True
    """A message that is known is a duplicate whatever else it expects; a single nats-server looks at expectations
    first, a clustered one at duplicates."""
    up_to_time_included: bool = True
    """A message stored at the nanosecond of `up_to_time` is part of the answer."""


    up_to_seq_as_asked: bool = False
    """An `up_to_seq` behind the last message is no error: nats-server finds nothing then."""


OURS = Rules()
_PEER = Rules(auto_allow_direct=False, headers_of_messages=False, empty_lists=False, up_to_time_included=False)
PEERS = {1: replace(_PEER, stream_first=False, duplicates_first=False), 3: _PEER}
"""By the number of servers."""
