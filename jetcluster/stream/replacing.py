"""REPLACE: messages take the place of others in one step, if the stream is still as its proposer saw it.

The object service ends an upload with it: the object's metadata is stored, the record of the upload, the older
metadata and the replaced object's chunks go. No crash leaves half of that.
"""

from __future__ import annotations

from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.bodies import Replace
from jetcluster.stream.checks import SEALED
from jetcluster.stream.rules import StreamRules

_PURGE_DENIED: Final = errors.by_code(errors.PURGE_FAILED, err="stream purge not permitted")


def refusal(store: BlockStore, rules: StreamRules, command: Replace) -> ApiError | None:
    """Why it may not be: 10071 says that a guard does not hold."""
    if rules.sealed:
        return SEALED
    if rules.deny_purge:
        return _PURGE_DENIED
    for subject, seq in command.guards:
        actual = store.last_seq_of(subject)
        if actual != seq:
            return errors.by_code(errors.WRONG_LAST_SEQUENCE, seq=actual)
    return None
