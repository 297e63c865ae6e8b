"""`$SYS.REQ.CLAIMS.*` and `$SYS.REQ.ACCOUNT.<id>.CLAIMS.*`: JWTs of accounts arrive, are requested, and are compared.

Every server of the cluster receives a new JWT and keeps it. A server periodically asks the others, with the digest of
its own JWTs, for those that it has missed. Subjects and replies are nats-server's, as `nsc push` and `nsc
pull` know them; the resolver decides which of them are served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.auth.resolver import AccountStoreError, Store
from jetcluster.cancelling import cancelled
from jetcluster.config.claims.account import AccountClaims, decode_account
from jetcluster.config.claims.token import ClaimsError, decode_generic
from jetcluster.config.nkeys import is_key
from jetcluster.config.options import CACHE, FULL, URL
from jetcluster.logs import get_logger
from jetcluster.model.codec import dumps
from jetcluster.monitor.source import Json
from jetcluster.monitor.view import ServerBlock
from jetcluster.node.node import Node
from jetcluster.node.operator_mode import NodeOperator
from jetcluster.protocol.bus import is_no_request

if TYPE_CHECKING:
    from jetcluster.protocol.bus import Bus, Callback, Origin, Subscription

log = get_logger("monitor")

MAX_QUEUED = 4096
"""Requests waiting; beyond it the newest is dropped and counted, and its sender asks again."""
FIRST_COMPARISON_SECONDS = 2.0
"""Seconds after the start, when the other servers are there."""
_PACK = "$SYS.REQ.CLAIMS.PACK"
_COMPARE = "$SYS.JETCLUSTER.CLAIMS.COMPARE"
"""Between our servers: each one but the asking one answers. A queue group would let a server answer itself."""


class ClaimsRequest(NamedTuple):
    """One request about account JWTs."""

    kind: str
    account: str
    """The account in the subject; "" without one."""
    body: bytes
    reply: bytes


class ClaimsRequests:
    """Requests about account JWTs (`$SYS.REQ.CLAIMS`, `$SYS.ACCOUNT.*.CLAIMS`), one after the other."""

    def __init__(self, node: Node, block: ServerBlock, operator: NodeOperator) -> None:
        self.dropped = 0
        self._node = node
        self._block = block
        self._operator = operator
        self._bus: Bus = node.server.account(node.options.system_account_name)
        self._subscriptions: list[Subscription] = []
        self._queue: deque[ClaimsRequest] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._inbox = b"$SYS._INBOX.CLAIMS." + node.server.server_id.encode()
        self._handlers: dict[str, Callable[[ClaimsRequest], Coroutine[Any, Any, None]]] = {
            "UPDATE": self._update,
            "DELETE": self._delete,
            "LIST": self._list,
            "LOOKUP": self._lookup,
            "PACK": self._pack,
            "COMPARE": self._compare,
            "MERGE": self._merge,
        }

    def start(self) -> None:
        for subject in ("$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", "$SYS.ACCOUNT.*.CLAIMS.UPDATE"):
            self._serve(subject, "UPDATE")
        store = self._store
        if store is None:
            return
        kind = store.options.kind
        for name in ("UPDATE", "LIST", "DELETE") if kind != URL else ():
            self._serve(f"$SYS.REQ.CLAIMS.{name}", name)
        if kind == FULL:
            self._serve("$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", "LOOKUP")
            self._serve(_PACK, "PACK", queue=b"responder")
        self._serve(_COMPARE, "COMPARE")
        self._serve(self._inbox.decode(), "MERGE")
        self._comparing = asyncio.get_running_loop().create_task(self._keep_comparing(store.options.interval))

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        self._subscriptions.clear()
        self._queue.clear()
        await cancelled([task for task in (self._worker, self._comparing) if task is not None])

    @property
    def _store(self) -> Store | None:
        resolver = self._operator.resolver
        return resolver if isinstance(resolver, Store) else None

    @property
    def _kept(self) -> Store:
        store = self._store
        assert store is not None
        return store

    # ---- requests

    def _serve(self, subject: str, kind: str, queue: bytes | None = None) -> None:
        place = subject.split(".").index("*") if "*" in subject else None

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            if is_no_request(origin):
                return
            account = "" if place is None else subject.split(b".")[place].decode("utf-8", "replace")
            self._take(ClaimsRequest(kind, account, payload, reply))

        callback: Callback = take
        self._subscriptions.append(self._bus.subscribe(subject.encode(), callback, queue))

    def _take(self, request: ClaimsRequest) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(request)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._queue:
            request = self._queue.popleft()
            try:
                await self._handlers[request.kind](request)
            except Exception:
                log.exception("claims request failed", kind=request.kind, account=request.account)
            await asyncio.sleep(0)

    # ---- one JWT

    async def _update(self, request: ClaimsRequest) -> None:
        store = self._store
        is_full = store is not None and store.options.kind == FULL
        cache = " cache" if store is not None and store.options.kind == CACHE else ""
        failed = f"jwt update{cache} resulted in error"
        text = request.body.decode("ascii", "replace")
        try:
            claims = decode_account(text)
        except ClaimsError as error:
            self._respond(request, "n/a" if is_full else request.account or "n/a", failed, error)
            return
        key = claims.key
        try:
            self._check_named(claims, request.account)
            if not is_full and self._operator.known.find(key) is None:
                self._respond(request, key, f"jwt update{cache} skipped")
                return
            problem = next(claims.problems(), "")
            if problem:
                self._respond(request, key, f"jwt{' update cache' if cache else ''} validation failed", problem)
                return
            if store is not None:
                await asyncio.to_thread(store.save, key, text)
            self._operator.update(key, text)
        except (ClaimsError, AccountStoreError, OSError) as error:
            self._respond(request, request.account or key, failed, error)
            return
        self._respond(request, key, f"jwt updated{cache}")

    def _check_named(self, claims: AccountClaims, named: str) -> None:
        if named not in ("", claims.key):
            raise ClaimsError("subject does not match jwt content")
        self._check_issuer(claims)

    def _check_issuer(self, claims: AccountClaims) -> None:
        """Raises ClaimsError for a JWT of an issuer that no operator trusts. nats-server keeps such JWTs and does not
        use them; this server does not keep them."""
        operator = self._node.options.operator
        issuer = claims.token.issuer
        strict = [one.token.subject for one in operator.operators[:1] if one.strict_signing_keys]
        if issuer in strict:
            raise ClaimsError("operator requires issuer to be a signing key")
        if issuer not in operator.keys:
            raise ClaimsError("account validation failed")

    async def _delete(self, request: ClaimsRequest) -> None:
        subject = ""
        try:
            token = decode_generic(request.body.decode("ascii", "replace"))
            subject = token.subject
            accounts = self._to_delete(token.subject, token.issuer, token.body.raw().get("accounts"))
        except ClaimsError as error:
            self._respond(request, "", f"delete accounts request by {subject} failed", error)
            return
        done, failures = 0, []
        for account in accounts:
            try:
                await asyncio.to_thread(self._kept.delete, account)
            except OSError as error:
                failures.append(str(error))
                continue
            self._operator.remove(account)
            done += 1
        if failures:
            text = f"deleted {done} accounts, failed for {len(failures)}"
            self._respond(request, "", text, "\n".join(failures))
        else:
            self._respond(request, "", f"deleted {done} accounts")

    def _to_delete(self, subject: str, issuer: str, accounts: object) -> list[str]:
        """Raises ClaimsError."""
        if not self._kept.options.allow_delete and self._kept.options.kind != CACHE:
            raise ClaimsError("delete must be enabled in server config")
        if subject != issuer:
            raise ClaimsError("not self signed")
        if issuer not in self._node.options.operator.keys:
            raise ClaimsError("not trusted")
        if not isinstance(accounts, list):
            raise ClaimsError("malformed request")
        for account in accounts:
            if not isinstance(account, str) or not is_key("A", account):
                raise ClaimsError("malformed request")
            if account == self._node.options.system_account_name:
                raise ClaimsError("not allowed to delete system account")
        return accounts

    def _respond(self, request: ClaimsRequest, account: str, message: str, error: object = "") -> None:
        text = str(error)
        if text:
            log.error("claims request", account=account, what=message, error=text)
        if not request.reply:
            return
        named: Json = {"account": account} if account else {}
        found: Json = {"server": self._block.make()}
        if text:
            found["error"] = {**named, "code": 500, "description": f"{message} - {text}"}
        else:
            found["data"] = {**named, "code": 200, "message": message}
        self._bus.publish(request.reply, dumps(found))

    # ---- lists of JWTs

    async def _list(self, request: ClaimsRequest) -> None:
        if request.reply:
            found = {"server": self._block.make(), "data": self._kept.accounts()}
            self._bus.publish(request.reply, dumps(found))

    async def _lookup(self, request: ClaimsRequest) -> None:
        if request.reply:
            text = await asyncio.to_thread(self._kept.fetch, request.account)
            self._bus.publish(request.reply, (text or "").encode())

    async def _pack(self, request: ClaimsRequest) -> None:
        """Sends a message for each JWT, and an empty one at the end. The body of the request is the digest of the
        asker's JWTs."""
        if not request.reply:
            return
        if request.body != self._kept.digest:
            await self._send_all(request.reply)
        self._bus.publish(request.reply)

    async def _send_all(self, reply: bytes) -> None:
        for account in self._kept.accounts():
            text = await asyncio.to_thread(self._kept.fetch, account)
            if text:
                self._bus.publish(reply, f"{account}|{text}".encode())

    # ---- the other servers

    async def ask_others(self, account: str, others: int, seconds: float) -> str:
        """Returns the first JWT that comes from one of `others` servers within `seconds`; "" when none of them has it,
        or none answers."""
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        silent = others + (self._kept.options.kind == FULL)  # then this server answers, too
        inbox = self._inbox + b"." + account.encode()

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            nonlocal silent
            silent -= 1
            if not found.done() and (payload or not silent):
                found.set_result(payload.decode("ascii", "replace"))

        subscription = self._bus.subscribe(inbox, take)
        try:
            self._bus.ask(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP".encode(), b"", inbox)
            async with asyncio.timeout(seconds):
                return await found
        except TimeoutError:
            return ""
        finally:
            self._bus.unsubscribe(subscription)

    async def _keep_comparing(self, interval: float) -> None:
        await asyncio.sleep(min(FIRST_COMPARISON_SECONDS, interval))
        while True:
            try:
                await asyncio.to_thread(self._kept.drop_old, self._node.clock.time_ns() / 1e9)
            except OSError as error:
                log.warning("old JWTs of accounts cannot be deleted", error=str(error))
            self._bus.ask(_COMPARE.encode(), self._node.server.server_id.encode() + self._kept.digest, self._inbox)
            await asyncio.sleep(interval)

    async def _compare(self, request: ClaimsRequest) -> None:
        own = self._node.server.server_id.encode()
        if request.reply and request.body[:-32] != own and request.body[-32:] != self._kept.digest:
            await self._send_all(request.reply)

    async def _merge(self, request: ClaimsRequest) -> None:
        for line in request.body.decode("ascii", "replace").splitlines():
            key, _, text = line.partition("|")
            try:
                claims = decode_account(text)
                self._check_issuer(claims)
                if await asyncio.to_thread(self._kept.save_if_newer, key, text):
                    self._operator.update(key, text)
            except (ClaimsError, AccountStoreError, OSError) as error:
                log.warning("the JWT of an account, from another server", account=key, error=str(error))
