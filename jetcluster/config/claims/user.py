"""The JWT of a user, and the templates of scoped signing keys that give its rights."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jetcluster.config.account_options import PermissionOptions, SubjectLists
from jetcluster.config.claims.rights import UNLIMITED, Rights, read_rights
from jetcluster.config.claims.token import ClaimsError, Token, decode
from jetcluster.config.nkeys import is_key

MAX_EXPANSIONS = 4096
"""Subjects to which the entries of one list may expand."""
_PLACEHOLDER = re.compile(r"\{\{([^}]+)\}\}")
_TAG = re.compile(r"(account-)?tag\((.*)\)", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class UserClaims:
    """The claims of one user's JWT."""

    token: Token
    rights: Rights
    issuer_account: str
    """The account if one of its signing keys is the issuer; else ""."""

    @property
    def account(self) -> str:
        return self.issuer_account or self.token.issuer

    def problem(self, now: float) -> str:
        """Returns the reason why the claims are not valid at this epoch second; "" when they are."""
        if late := self.token.time_problem(now):
            return late
        if self.issuer_account and not is_key("A", self.issuer_account):
            return "account_id is not an account public key"
        return next(self.rights.problems(), "")


def decode_user(text: str) -> UserClaims:
    """Returns the claims of a user's JWT. Raises ClaimsError."""
    token = decode(text, "user")
    if token.version == 1:
        return UserClaims(token, read_rights(token.body, UNLIMITED), token.top.text("issuer_account"))
    return UserClaims(token, read_rights(token.body), token.body.text("issuer_account"))


def filled_in(template: Rights, user: UserClaims, account_name: str, account_tags: Sequence[str]) -> Rights:
    """Returns the rights of a user by the template of its signing key. Raises ClaimsError.

    An entry of an allow list that expands to no subject is left out; a list without entries left allows nothing. An
    entry of a deny list must expand to a subject.
    """
    plain: dict[str, Callable[[], str]] = {
        "name()": lambda: user.token.name,
        "subject()": lambda: user.token.subject,
        "account-name()": lambda: account_name,
        "account-subject()": lambda: user.issuer_account,
    }

    def values(operation: str, entry: str, *, strict: bool) -> list[str]:
        if operation.lower() in plain:
            return [plain[operation.lower()]()]
        tag = _TAG.fullmatch(operation)
        if tag is None:
            raise ClaimsError(f'template operation in "{entry}": "{operation}" is not defined')
        prefix = f"{tag[2].lower()}:"
        tags = account_tags if tag[1] else user.token.tags
        found = [item.removeprefix(prefix) for item in tags if item.startswith(prefix)]
        if not found and strict:
            raise ClaimsError(f'generated invalid subject "{entry}": "{tag[2]}" is not defined')
        return found

    def expand(entries: list[str] | None, *, strict: bool) -> list[str] | None:
        if not entries or not any(map(_PLACEHOLDER.search, entries)):
            return entries
        made: list[str] = []
        for entry in entries:
            places = list(_PLACEHOLDER.finditer(entry))
            choices = [values(place[1].strip(), entry, strict=strict) for place in places]
            if len(made) + math.prod(map(len, choices)) > MAX_EXPANSIONS:
                raise ClaimsError(f"template expansion exceeds limit: {MAX_EXPANSIONS}")
            for chosen in itertools.product(*choices):
                subject = _put(entry, places, chosen)
                if _is_subject(subject):
                    made.append(subject)
                elif strict:
                    raise ClaimsError("generated invalid subject")
        return made

    def lists(given: SubjectLists) -> SubjectLists:
        allow, deny = expand(given.allow, strict=False), expand(given.deny, strict=True)
        if given.allow and not allow:
            allow, deny = None, [*(deny or ()), ">"]
        return SubjectLists(allow, deny)

    given = template.permissions
    permissions = PermissionOptions(lists(given.publish), lists(given.subscribe), given.responses)
    return replace(template, permissions=permissions)


def _put(entry: str, places: list[re.Match[str]], chosen: tuple[str, ...]) -> str:
    parts, at = [], 0
    for place, text in zip(places, chosen, strict=True):
        parts += [entry[at : place.start()], text]
        at = place.end()
    return "".join([*parts, entry[at:]])


def _is_subject(text: str) -> bool:
    tokens = text.split(".")
    return all(tokens) and not any(char.isspace() for char in text) and ">" not in tokens[:-1]
