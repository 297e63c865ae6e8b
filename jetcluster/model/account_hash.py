"""`{{account-hash()}}` and its kin in subjects of a configuration or a JWT: eight characters that stand for an account.

    {{account-hash()}}              the account that has the mapping, export, import or link
    {{account-hash-import()}}       of an import: the account that exports
    {{account-hash-leaf-remote()}}  of a leaf node's `deny_imports` and `deny_exports`: the account at the other end

They are replaced once, where the subject is put to use, and work in subjects that are no transforms. nats-server 2.15
has them (subject_transform.go), with these texts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from jetcluster.model.transforms import TransformError
from jetcluster.records import NamedTuple

_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FUNCTION: Final = re.compile(r"\{\{\s*[aA]ccount-[hH]ash(|-[iI]mport|-[lL]eaf-[rR]emote)\s*\((.*)\)\s*\}\}")
_INVALID: Final = "invalid mapping destination"


def account_hash(account: str) -> str:
    """Return the eight characters that stand for an account's name."""
    return "".join(_BASE62[byte % 62] for byte in hashlib.sha256(account.encode()).digest()[:8])


class AccountNames(NamedTuple):
    """The accounts that a subject may mean; "" where there is none."""

    own: str
    exporter: str = ""
    leaf_remote: str | None = ""
    """None: not known yet, and `expand` leaves its function as it is."""

    def expand(self, subject: str) -> str:
        """Return `subject` with its functions replaced. Raises TransformError: one has an argument, or means an account
        that there is not here."""
        if "{{" not in subject:
            return subject
        return ".".join(map(self._token, subject.split(".")))

    def expand_all(self, subjects: Sequence[str]) -> list[str]:
        """Do `expand` for each."""
        return [self.expand(subject) for subject in subjects]

    def leaves_open(self, subjects: Sequence[str]) -> bool:
        """Return True when `expand` leaves a function in one of them, as its account is not known yet."""
        return any(_FUNCTION.fullmatch(token) for one in self.expand_all(subjects) for token in one.split("."))

    def _token(self, token: str) -> str:
        found = _FUNCTION.fullmatch(token)
        if found is None:
            return token
        kind, arguments = found.groups()
        if arguments.strip():
            raise TransformError(f"{_INVALID}: too many arguments passed to the function in {token}")
        name = {"": self.own, "-import": self.exporter}.get(kind.lower(), self.leaf_remote)
        if name is None:
            return token
        if not name:
            raise TransformError(f"{_INVALID}: function is not available in this context in {token}")
        return account_hash(name)
