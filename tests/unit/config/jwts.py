"""An operator with two accounts, and the JWTs that they sign."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from tests.signer import Account, Key, Operator

OPERATOR = Operator()


ACCOUNT, OTHER = OPERATOR.account("A"), OPERATOR.account("B")


NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=ZoneInfo("Asia/Tokyo")).timestamp()


def account_with(limits: dict[str, Any] | None = None, **claims: Any) -> Account:
    account = Account(OPERATOR.key, "A", limits or {})
    account.key = ACCOUNT.key
    account.claims = claims
    return account


def activation(signer: Key, subject: str = "a", kind: str = "stream", to: str = ACCOUNT.public, **more: Any) -> str:
    return signer.token(to, "", {"type": "activation", "subject": subject, "kind": kind, **more})
