"""Loops that touch every byte, compiled by Cython where a C compiler was at hand: `make install`, `pip install .` and a
binary wheel bring them. Each has a twin in Python, which runs where they are missing and says what they must do.

They know nothing of the server's rooms: whatever is not plain they leave to the twin, so that a rule stands once.
`JETCLUSTER_PURE=1` turns them off.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_OTHER_SOURCES: Final = "compiled from other sources: run make install"
HERE: Final = Path(__file__).parent
_MODULES: Final = ("acks", "batches", "checksums", "gets", "ingest", "messages", "publishes", "writes")


def source_digest(folder: Path) -> str:
    """Return a digest of the sources that `scripts/native.py` compiles into each module."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted((*folder.glob("*.pyx"), *folder.glob("*.pxd"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _load() -> tuple[str, dict[str, Any]]:
    """Import the compiled modules. Returns why not, and them: a mixture of compiled and other sources must not run."""
    if os.environ.get("JETCLUSTER_PURE"):
        return "JETCLUSTER_PURE is set", {}
    found: dict[str, Any] = {}
    wanted = source_digest(HERE)
    for name in _MODULES:
        try:
            found[name] = importlib.import_module(f"{__name__}.{name}")
        except ImportError as error:
            return f"not compiled ({error})", {}
        if wanted != found[name].SOURCE:
            return _OTHER_SOURCES, {}
    return "", found


def _late(name: str) -> Any:
    """Import a compiled module that no server needs; None where it is missing, or of other sources."""
    try:
        found = importlib.import_module(f"{__name__}.{name}")
    except ImportError:
        return None
    return found if source_digest(HERE) == found.SOURCE else None


why_pure, _found = _load()
"""The reason why Python runs alone; "" when the compiled loops run."""

publish_lines: Callable[..., None] | None = None if why_pure else _found["publishes"].publish_lines
"""`publishes.publish_lines`; its twin is `server.client.commands.Commands`."""
render: Callable[..., tuple[bytes, int, int]] | None = None if why_pure else _found["messages"].render
"""`messages.render`; its twin is `ClientSubscription.take_many`."""
render_answers: Callable[..., tuple[bytes, int, int, int]] | None = (
    None if why_pure else _found["messages"].render_answers
)
"""`messages.render_answers`; its twin is `server.accounts.router.Router.publish_many`."""
join_columns: Callable[..., bytes] | None = None if why_pure else _found["messages"].join_columns
split_columns: Callable[..., list[Any] | None] | None = None if why_pure else _found["messages"].split_columns
"""`messages.join_columns` and `split_columns`; their twins are `mesh.frames.encode_msgs` and `decode_msgs`."""
run_length: Callable[..., int] | None = None if why_pure else _found["messages"].run_length
"""`messages.run_length`; without it each message is looked up (`server.accounts.router.Router`)."""
payload_bytes: Callable[..., int] | None = None if why_pure else _found["messages"].payload_bytes
"""`messages.payload_bytes`; its twin is `mesh.peer_link.size_of`."""
bare_length: Callable[..., int] | None = None if why_pure else _found["messages"].bare_length
"""`messages.bare_length`; its twin is in `server.accounts.router`."""
as_messages: Callable[..., tuple[list[Any], int]] | None = None if why_pure else _found["messages"].as_messages
"""`messages.as_messages`; without it each answer is sent alone (`server.accounts.router.Router.publish_many`)."""
split_bare: Callable[..., tuple[list[bytes], list[bytes], list[bytes], int] | None] | None = (
    None if why_pure else _found["ingest"].split_bare
)
"""`ingest.split_bare`; its twin is in `stream.lead.ingest`."""
stored_acks: Callable[..., list[tuple[bytes, bytes]]] | None = None if why_pure else _found["ingest"].stored_acks
"""`ingest.stored_acks`; its twin is `stream.lead.answers.PubAcks.render`."""
told_by: Callable[..., list[tuple[bytes, int]]] | None = None if why_pure else _found["ingest"].told_by
"""`ingest.told_by`; its twin is `server.accounts.told.told`."""
plain_get: Callable[[bytes], int | bytes | None] | None = None if why_pure else _found["gets"].plain_get
"""`gets.plain_get`; its twin is `stream.read.get_request.GetRequest`."""
message_head: Callable[..., bytes] | None = None if why_pure else _found["gets"].message_head
"""`gets.message_head`; its twin is in `stream.read.direct_get`."""
message_of: Callable[..., tuple[bytes, bytes, bytes] | None] | None = None if why_pure else _found["batches"].message_of
"""`batches.message_of`; its twin is `store.batch.Batch.message`."""
take_scattered: Callable[..., tuple[int, int]] | None = None if why_pure else _found["batches"].take_scattered
"""`batches.take_scattered`; its twin is `store.block_reader.BlockReader.take`."""
frames_of: Callable[..., tuple[list[tuple[bytes, bytes]], int, int, int, int]] | None = (
    None if why_pure else _found["gets"].frames_of
)
"""`gets.frames_of`; its twin is in `stream.read.direct_get`."""
render_frames: Callable[..., tuple[bytes, int]] | None = None if why_pure else _found["messages"].render_frames
"""`messages.render_frames`; its twin is in `server.accounts.subscription`."""
crc32: Callable[..., int] | None = _found["checksums"].crc32 if not why_pure and _found["checksums"].CAN_FOLD else None
"""`checksums.crc32`; its twin is `zlib.crc32`, and runs also where the processor lacks the instructions."""
read_acks: Callable[..., tuple[list[int], list[bytes]]] | None = None if why_pure else _found["acks"].read_acks
"""`acks.read_acks`; its twin is `consumer.owner.acks.Acks.received`."""
ack_subjects: Callable[..., list[bytes]] | None = None if why_pure else _found["acks"].ack_subjects
"""`acks.ack_subjects`; its twin is `consumer.owner.ack_subject.Renderer.first`."""


@functools.cache
def row_loops() -> Any:
    """Return the module with `Columns`, whose twins are `client.connection.Connection` and `arrow.convert`, and
    `header_fields`, whose twin is in `arrow.convert`; None where Python runs alone. Only readers of streams load it."""
    return None if why_pure else _late("rows")


Write: Any = None if why_pure else _found["writes"].Write
"""`writes.Write`, a write without the interpreter's lock; its twin is `raft.journal.disk.FileDisk.write`."""
Job: Any = None if why_pure else _found["writes"].Job
WriteQueue: Any = None if why_pure else _found["writes"].WriteQueue
"""`writes.WriteQueue`, which runs them; its twin is `raft.journal.writer.ThreadWriter`."""

COMPILED: Final = "compiled loops"
described: Final = f"Python alone: {why_pure}" if why_pure else COMPILED
"""The loops that run, as `-v`, the log and /varz show it."""
