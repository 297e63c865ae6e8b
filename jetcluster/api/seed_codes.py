"""Error numbers as the specification has them, which nats-server gives to other errors.

For answers of the API only: clients of every language know PubAcks by nats-server's numbers, and 10071 is "wrong last
sequence" there.
"""

from __future__ import annotations

from typing import Final

from jetcluster.errors import SEED_STREAM_NOT_FOUND, ApiError

SEED_CODES: Final = {
    10059: SEED_STREAM_NOT_FOUND,  # stream not found
    10065: 10059,  # subjects overlap with an existing stream
    10013: 10071,  # a consumer of that name exists: in use,
    10105: 10071,  # active,
    10148: 10071,  # with another configuration
}


def renumbered(error: ApiError) -> ApiError:
    """The same error with the specification's number."""
    number = SEED_CODES.get(error.err_code)
    return error if number is None else ApiError(error.code, number, error.description)
