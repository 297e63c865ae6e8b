"""`Reply`: one answer of a server, and the errors for a missing one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.protocol import headers as header_block


class ConnectionLostError(PassingError):
    """No server could be reached, or the connection broke. Requests in flight may or may not have been carried out."""


class ServerError(JetclusterError):
    """The server sent -ERR (no permission, a protocol violation), or its certificate is not trusted."""


class NoRespondersError(PassingError):
    """Status 503: no subscriber serves this subject, or the one that does is overloaded."""


class RequestTimeoutError(PassingError):
    """No answer arrived in time."""


class Reply(NamedTuple):
    """One answer: a status, a header block and a payload."""

    status: int
    """The status of the header's first line (204, 404, 503, ...); 0 for none."""
    description: str
    headers: bytes
    """The header block as received, b"" for none."""
    data: bytes

    def get(self, name: str) -> str | None:
        """Returns the first value of a header, None if it is missing."""
        value = header_block.get(self.headers, name.encode())
        return None if value is None else value.decode(errors="replace")

    def json(self) -> dict[str, Any]:
        """Parses the payload. Raises ServerError when it is not a JSON object."""
        try:
            found = json.loads(self.data)
        except ValueError as error:
            raise ServerError(f"not JSON: {self.data[:100]!r}") from error
        if not isinstance(found, dict):
            raise ServerError(f"not a JSON object: {self.data[:100]!r}")
        return found


def api_error(found: dict[str, Any]) -> ApiError:
    """Converts the `error` object of a server's answer to an exception."""
    code, err_code = int(found.get("code", 500)), int(found.get("err_code", 0))
    return ApiError(code, err_code, str(found.get("description", "error")))


def make_reply(headers: bytes, data: bytes) -> Reply:
    status, text = header_block.status(headers) if headers else (0, b"")
    return Reply(status, text.decode(errors="replace"), headers, data)
