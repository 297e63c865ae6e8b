"""The accounts that operator mode knows, and who signs their users."""

from __future__ import annotations

from jetcluster.auth.operator_mode import KnownAccount, KnownAccounts
from jetcluster.config.claims.account import unlimited_account
from jetcluster.config.claims.rights import Rights


def test_with_strict_keys_an_account_does_not_sign_its_users_itself() -> None:
    claims = unlimited_account("ACCOUNT", "SIGNER")
    template = Rights()
    claims.scopes = {"SCOPED": template, "PLAIN": None}
    known = KnownAccount(claims, 1)
    assert known.signers([]) == {"SCOPED": template, "PLAIN": None, "ACCOUNT": None}
    assert known.signers(["SIGNER"]) == {"SCOPED": template, "PLAIN": None}
    assert known.signers(["OTHER"]).keys() >= {"ACCOUNT"}


def test_an_account_is_found_by_its_key() -> None:
    accounts = KnownAccounts()
    known = accounts.by_key["ACCOUNT"] = KnownAccount(unlimited_account("ACCOUNT", "SIGNER"), 1)
    assert accounts.find("ACCOUNT") is known and accounts.find("OTHER") is None
