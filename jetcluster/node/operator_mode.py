"""Operator mode of a node: the accounts are those of the JWTs, at the start and after each change of one.

An account's claims become `AccountOptions`, as its block in the configuration file would; the node knows no other form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.auth.operator_mode import KnownAccount, KnownAccounts, OperatorAuthenticator
from jetcluster.auth.resolver import AccountStoreError, DirectoryStore, MemoryResolver, Resolver, Store, UrlStore
from jetcluster.clock import Clock
from jetcluster.config.account_options import AccountOptions
from jetcluster.config.claims.account import AccountClaims, is_revoked, unlimited_account, verified_account
from jetcluster.config.claims.shared import ImportClaim, decode_activation
from jetcluster.config.claims.token import ClaimsError
from jetcluster.config.lexer import ConfigError
from jetcluster.config.nkeys import is_key
from jetcluster.config.options import FULL, MEMORY, URL, Options
from jetcluster.logs import Logger

if TYPE_CHECKING:
    from jetcluster.clock import TimerHandle

_LONGEST_TIMER_SECONDS = 7 * 24 * 3600.0
_LAST_SECOND = 253_402_300_799
"""Last second of the year 9999, the last that can be formatted."""
MAX_ASKED = 64
"""Most accounts sought elsewhere at the same time; a login that needs one more is refused."""
MISSED_SECONDS = 1.0
"""Time for which an account that was not found is not sought again."""


class AccountChange(NamedTuple):
    """A change of the options of `account`."""

    account: str
    shares: bool
    """True when exports, imports or mappings of some account have changed too."""
    jetstream: bool
    """True when accounts were added or removed, or their JetStream switched."""


class NodeOperator:
    """The accounts of a node in operator mode, and their resolver."""

    def __init__(
        self,
        options: Options,
        clock: Clock,
        log: Logger,
        apply: Callable[[AccountChange], None],
        ask_others: Callable[[str, float], Awaitable[str]],
    ) -> None:
        """`options` is the object that a reload changes in place. `ask_others` returns an account's JWT that another
        server of the cluster sends within the given seconds; "" when none has it."""
        self._options = options
        self._clock = clock
        self._log = log
        self._apply = apply
        self._ask_others = ask_others
        self.known = KnownAccounts()
        self.resolver: Resolver = MemoryResolver({})
        self._timers: dict[str, TimerHandle] = {}
        """Timers for the expiry of each account."""
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, float] = {}
        """By account, the monotonic time at which it was not found."""

    # ---- start and reload

    def start(self) -> None:
        """Loads the accounts, before the server is made. Raises OSError."""
        options = self._options
        self.resolver = self._open_resolver(options)
        self.known.by_key = self._read_all(options)
        self._fill(options, self.known)
        for key, account in self.known.by_key.items():
            self._expect_end(key, account)

    def authenticator(self, options: Options) -> OperatorAuthenticator:
        return OperatorAuthenticator(options, self.known, self._clock)

    def prepare(self, options: Options) -> KnownAccounts:
        """Prepares a reload: fills the accounts into `options`, and changes nothing else. Raises ConfigError."""
        known = KnownAccounts()
        if isinstance(self.resolver, Store):
            try:
                if isinstance(self.resolver, DirectoryStore):
                    self.resolver.scan()
                known.by_key = {**self.known.by_key, **self._read_all(options)}
            except OSError as error:
                raise ConfigError(f"the JWTs of accounts cannot be read: {error}") from error
        else:
            known.by_key = self._read_all(options, MemoryResolver(options.operator.preload))
        self._fill(options, known)
        return known

    def take_over(self, known: KnownAccounts) -> None:
        """Takes over the accounts of `prepare`, before the connections are authenticated anew."""
        if not isinstance(self.resolver, Store):
            self.resolver = MemoryResolver(self._options.operator.preload)
        elif isinstance(self.resolver, UrlStore):
            self.resolver.tls = self._options.operator.resolver_tls
        self.known.by_key = known.by_key
        for key in list(self._timers):
            self._timers.pop(key).cancel()
        for key, account in self.known.by_key.items():
            self._expect_end(key, account)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._asked.values():
            task.cancel()

    def log_start(self) -> None:
        options, log = self._options, self._log
        if options.operator.operators:
            log.info("Trusted Operators")
        for operator in options.operator.operators:
            token = operator.token
            log.info(f'  System  : "{token.audience}"')
            log.info(f'  Operator: "{token.name}"')
            log.info(f"  Issued  : {_time(token.issued_at)}")
            log.info(f"  Expires : {_time(token.expires) if token.expires else 'Never'}")
        if options.operator.operators and not options.system_account:
            log.warning("Trusted Operators should utilize a System Account")

    def _open_resolver(self, options: Options) -> Resolver:
        operator = options.operator
        if operator.resolver is None or operator.resolver.kind == MEMORY:
            return MemoryResolver(operator.preload)
        if operator.resolver.kind == URL:
            return self._ask_first(UrlStore(operator.resolver, operator.resolver_tls), options.system_account)
        directory = DirectoryStore(operator.resolver)
        directory.drop_old(self._clock.time_ns() / 1e9)
        for key, text in operator.preload.items():
            try:
                directory.save_if_newer(key, text)
            except (ClaimsError, AccountStoreError) as error:
                self._log.warning(f"Account [{key}] has validation issues: {error}")
        how = "all jwt in exclusive directory" if operator.resolver.kind == FULL else "some jwt in exclusive directory"
        self._log.info(f"Managing {how} {directory.directory}")
        return directory

    def _ask_first(self, store: UrlStore, system_account: str) -> UrlStore:
        """Checks that the web server answers, and fetches the system account. Raises OSError without an answer."""
        store.ask("")
        try:
            if system_account:
                store.save_if_newer(system_account, store.ask(system_account))
        except (OSError, ClaimsError, AccountStoreError) as error:
            self._log.warning(f"Account fetch failed: {error}")
        return store

    def _read_all(self, options: Options, resolver: Resolver | None = None) -> dict[str, KnownAccount]:
        found: dict[str, KnownAccount] = {}
        for key, text in (resolver or self.resolver).all():
            try:
                found[key] = self._verified(options, key, text)
            except ClaimsError as error:
                self._log.warning(f"Account [{key}] has validation issues: {error}")
        system = options.system_account
        if system and options.operator.operators and not {system} & (found.keys() | self.known.by_key.keys()):
            # A login must be possible, in order to upload the JWTs.
            issuer = options.operator.keys[0]
            found[system] = KnownAccount(unlimited_account(system, issuer), self._clock.time_ns())
            self._log.info("Using bootstrapping system account")
        return found

    def _verified(self, options: Options, key: str, text: str) -> KnownAccount:
        """Raises ClaimsError."""
        now = self._clock.time_ns()
        return KnownAccount(verified_account(key, text, options.operator.keys, now / 1e9), now)

    # ---- changes

    def update(self, key: str, text: str) -> bool:
        """Takes new claims of an account; returns False when they are unchanged. Raises ClaimsError."""
        known = self.known.by_key.get(key)
        if known is not None and known.claims.token.text == text and not known.expired:
            return False
        account = self._verified(self._options, key, text)
        self.known.by_key[key] = account
        self._expect_end(key, account)
        self._changed(key)
        return True

    def remove(self, key: str) -> None:
        """Removes an account; its streams stay, out of reach."""
        account = self.known.find(key)
        if account is None or account.removed:
            return
        account.expired = account.removed = True
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        (self._options.accounts or {}).pop(key, None)
        self._apply(AccountChange(key, shares=True, jetstream=True))

    # ---- accounts that are elsewhere

    def look_up(self, refusal: Exception) -> Coroutine[Any, Any, None] | None:
        """Returns the search for the account of a refused login, when there is a server or a resolver to ask."""
        account = getattr(refusal, "account", "")
        if not account or not isinstance(self.resolver, Store) or not is_key("A", account):
            return None
        now = self._clock.monotonic()
        if account not in self._asked:
            if len(self._asked) >= MAX_ASKED or now - self._missed.get(account, -MISSED_SECONDS) < MISSED_SECONDS:
                return None
            self._asked[account] = asyncio.get_running_loop().create_task(self._ask(account))
        return self._wait_for(self._asked[account])

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        await asyncio.shield(task)

    async def _ask(self, account: str) -> None:
        store = self.resolver
        assert isinstance(store, Store)
        try:
            if isinstance(store, UrlStore):
                text = await asyncio.to_thread(store.ask, account)
            else:
                text = await self._ask_others(account, store.options.timeout)
            if not text:
                raise ClaimsError("account jwt not found")  # noqa: TRY301
            found = self._verified(self._options, account, text)
            text = found.claims.token.text
            if not await asyncio.to_thread(store.save_if_newer, account, text):
                younger = await asyncio.to_thread(store.fetch, account)  # it has come meanwhile
                text = younger or text
            self.update(account, text)
        except (ClaimsError, ConfigError, AccountStoreError, OSError) as error:
            self._log.warning(f"Account fetch failed: {error}")
            if len(self._missed) >= MAX_ASKED * 16:
                self._missed.clear()
            self._missed[account] = self._clock.monotonic()
        finally:
            del self._asked[account]

    # ---- what changes with an account

    def _changed(self, key: str) -> None:
        """Applies the changed options of an account, and of accounts whose imports it may allow or not."""
        others = [
            name
            for name, account in self.known.by_key.items()
            if name != key
            and not account.removed
            and any(found.options.account == key for found in account.claims.imports)
        ]
        accounts = self._options.accounts
        assert accounts is not None
        shares = jetstream = False
        for name in (key, *others):
            before = accounts.get(name)
            after = accounts[name] = self._options_of(self.known.by_key[name].claims, self.known)
            shares = shares or _shared(before) != _shared(after)
            jetstream = jetstream or before is None or (before.jetstream is None) != (after.jetstream is None)
        self._apply(AccountChange(key, shares=shares, jetstream=jetstream))

    # ---- the end of an account's time

    def _expect_end(self, key: str, account: KnownAccount) -> None:
        """Sets a timer for the expiry of the account's JWT, or of the next token that activates one of its imports."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        now = self._clock.time_ns() / 1e9
        if 0 < account.claims.token.expires <= now:
            account.expired = True
        ends = [account.claims.token.expires, *(found.expires for found in account.claims.imports)]
        end = min((end for end in ends if end > now), default=0)
        if end:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(min(end - now, _LONGEST_TIMER_SECONDS), self._look_at_end, key)

    def _look_at_end(self, key: str) -> None:
        del self._timers[key]
        account = self.known.by_key[key]
        self._expect_end(key, account)
        if account.expired:
            self._log.info(f"Account [{key}] has expired")
        self._changed(key)

    # ---- from claims to options

    def _fill(self, options: Options, known: KnownAccounts) -> None:
        configured = options.accounts or {}
        found = {
            key: self._options_of(account.claims, known) for key, account in known.by_key.items() if not account.removed
        }
        options.accounts = {**configured, **found}

    def _options_of(self, claims: AccountClaims, known: KnownAccounts) -> AccountOptions:
        options = claims.options()
        if claims.key == self._options.system_account and options.jetstream is not None:
            self._log.warning("Not allowed to enable JetStream on the system account")
            options.jetstream = None
        options.imports = [
            replace(found.options, activated=self._is_activated(claims.key, found, known)) for found in claims.imports
        ]
        return options

    def _is_activated(self, key: str, found: ImportClaim, known: KnownAccounts) -> bool:
        """Returns True when the exporting account has signed a token for this import, and has not revoked it."""
        exporter = known.find(found.options.account)
        if not found.token or exporter is None:
            return False
        try:
            activation = decode_activation(found.token)
        except ClaimsError:
            return False
        token = activation.token
        now = self._clock.time_ns() / 1e9
        if token.time_problem(now) or 0 < token.expires <= now:
            return False
        if activation.exporter != exporter.claims.key or token.subject != key:
            return False
        if activation.issuer_account and token.issuer not in exporter.signers(self._strict_keys):
            return False
        return not any(
            is_revoked(export.revocations, token.subject, token.issued_at)
            for export in exporter.claims.exports
            if export.options.kind == found.options.kind and found.is_of(export.options.subject)
        )

    @property
    def _strict_keys(self) -> list[str]:
        return self._options.operator.strict_keys


def _shared(options: AccountOptions | None) -> list[Any]:
    """Returns the parts of an account that concern other accounts."""
    return [] if options is None else [*options.exports, *options.imports, *options.mappings]


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(min(max(seconds, 0), _LAST_SECOND), UTC):%Y-%m-%d %H:%M:%S} +0000 UTC"
