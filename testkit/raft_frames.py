"""`encode_raft`: a Raft frame as it crosses the mesh."""

from __future__ import annotations

from jetcluster.mesh.frames import RAFT, RAFT_EXTRA_BYTES, pack_raft


def encode_raft(gid: int, frame: bytes) -> bytes:
    return pack_raft(len(frame) + RAFT_EXTRA_BYTES, RAFT, gid) + frame
