"""The `feature_flags` of nats-server 2.15, and which of those behaviours this server has. It switches none of them: a
configuration's values are inert (docs/configuration.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FEATURE_FLAGS: Final[Mapping[str, bool]] = {
    "js_ack_fc_v2": False,  # subjects of acks have no domain and account (`consumer.owner.ack_subject`)
    "js_api_reply_v2": False,  # nor have those on which answers to the server's own requests come
    "js_raft_delete_range": True,  # one entry for a gap that a mirror takes over (`stream.sourced`)
    "js_snapshot_sources": True,  # a stream's state in a catch-up has the positions in its sources
}
