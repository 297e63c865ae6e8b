"""The JWT of an operator, with the keys that sign accounts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jetcluster.config.claims.token import MAX_TOKEN_BYTES, ClaimsError, Token, decode, undecorated

_PREFIX = "eyJ"
"""The beginning of every JWT."""


@dataclass(slots=True, frozen=True)
class OperatorClaims:
    """The claims of one operator's JWT."""

    token: Token
    signing_keys: tuple[str, ...]
    system_account: str
    account_server_url: str
    server_version: str
    """The oldest server version that may run with this operator; "": any."""
    strict_signing_keys: bool
    """The operator's own key must not sign accounts; only its signing keys may."""

    @property
    def keys(self) -> list[str]:
        """The keys that may sign accounts."""
        return [*([] if self.strict_signing_keys else [self.token.subject]), *self.signing_keys]


def decode_operator(text: str) -> OperatorClaims:
    """Returns the claims of an operator's JWT. Raises ClaimsError."""
    token = decode(text, "operator")
    body = token.body
    return OperatorClaims(
        token=token,
        signing_keys=tuple(body.texts("signing_keys")),
        system_account=body.text("system_account"),
        account_server_url=body.text("account_server_url"),
        server_version=body.text("assert_server_version"),
        strict_signing_keys=body.flag("strict_signing_key_usage"),
    )


def read_operator(path_or_token: str) -> OperatorClaims:
    """Reads a JWT from a file, decorated or not, or from the text itself. Raises ClaimsError and OSError."""
    try:
        with Path(path_or_token).open(encoding="utf-8") as file:
            text = file.read(MAX_TOKEN_BYTES + 1)
    except (OSError, ValueError) as error:
        if not path_or_token.startswith(_PREFIX):
            raise error if isinstance(error, OSError) else ClaimsError("the file is no text") from None
        text = path_or_token
    return decode_operator(undecorated(text))
