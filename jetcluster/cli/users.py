"""`jetcluster users`: accounts and their users with connections, usage and limits, as servers tell the system account.

A server tells who is connected. Users of a configuration without a connection are in its file alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from jetcluster.cli.cluster_state import PING, natural
from jetcluster.cli.common import DONE, NOT_REACHED, connected, fail
from jetcluster.cli.status_view import printable, size, table
from jetcluster.cli.stream_pages import MAX_ACCOUNTS
from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, RequestTimeoutError
from jetcluster.client.servers import ServerOptions
from jetcluster.client.survey import Answers, NoSystemUserError, survey

PAGE: Final = 1024
"""Connections in one answer of a server."""
MAX_PAGES: Final = 256
NO_LIMIT: Final = -1


@dataclass
class UserState:
    """A user's connections to all servers."""

    name: str
    connections: int = 0
    subscriptions: int = 0
    pending_bytes: int = 0
    in_msgs: int = 0
    out_msgs: int = 0
    servers: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    """Names that the clients have given their connections."""


@dataclass
class AccountState:
    """An account with its connected users, and what JetStream stores for it: bytes of all replicas."""

    name: str
    system: bool = False
    jetstream: bool = False
    users: list[UserState] = field(default_factory=list)
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    """Limits of the account's JWT that are set (operator mode): `conn`, `subs`, `disk_storage` and the like."""


def run_users(servers: ServerOptions, *, as_json: bool) -> int:
    """Lists accounts and users. Returns 0, or 2 when no server is reached or the user may not ask."""

    def work(connection: Connection) -> int:
        try:
            accounts = read_accounts(connection, servers.connect_timeout)
        except NoSystemUserError as error:
            return fail("users", str(error), NOT_REACHED)
        if as_json:
            print(json.dumps([asdict(account) for account in accounts], ensure_ascii=False))
        else:
            _show(accounts)
        return DONE

    return connected("users", servers, work)


def read_accounts(connection: Connection, within: float) -> list[AccountState]:
    """Raises what `survey` raises."""
    (pings,) = survey(connection, [(PING, {})], within)
    count = len(pings)
    accountz, jsz = survey(
        connection, [(f"{PING}.ACCOUNTZ", {}), (f"{PING}.JSZ", {"accounts": True, "limit": MAX_ACCOUNTS})], within,
        lambda _: count,
    )  # fmt: skip
    accounts = accounts_of(accountz, jsz)
    for account in accounts.values():
        _add_info(account, connection, within)
    add_users(accounts, _connections(connection, within, count))
    return [accounts[name] for name in sorted(accounts)]


def accounts_of(accountz: Answers, jsz: Answers) -> dict[str, AccountState]:
    """Returns the accounts that any server knows, with their usage of all servers."""
    found: dict[str, AccountState] = {}
    for answer in accountz:
        page = answer.get("data", {})
        for name in page.get("accounts") or ():
            account = found.setdefault(str(name), AccountState(str(name)))
            account.system |= name == page.get("system_account")
    for answer in jsz:
        for page in answer.get("data", {}).get("account_details") or ():
            account = found.setdefault(str(page["name"]), AccountState(str(page["name"])))
            account.jetstream = True
            account.memory += page.get("memory", 0)
            account.storage += page.get("storage", 0)
            account.reserved_memory = max(account.reserved_memory, _limit(page.get("reserved_memory", 0)))
            account.reserved_storage = max(account.reserved_storage, _limit(page.get("reserved_storage", 0)))
    return found


def _limit(reserved: int) -> int:
    """nats-server reports no limit as -1 without a sign."""
    return reserved if 0 < reserved < 1 << 63 else 0


def _add_info(account: AccountState, connection: Connection, within: float) -> None:
    try:
        reply = connection.request(f"$SYS.REQ.ACCOUNT.{account.name}.INFO", timeout=within).json()
    except (NoRespondersError, RequestTimeoutError):
        return
    page = reply.get("data") or {}
    account.jetstream |= bool(page.get("jetstream_enabled"))
    limits = ((page.get("decoded_jwt") or {}).get("nats") or {}).get("limits") or {}
    account.limits = {key: value for key, value in limits.items() if type(value) is int and value not in (NO_LIMIT, 0)}


def _connections(connection: Connection, within: float, servers: int) -> Answers:
    """Returns all pages of all servers' connections."""
    found: Answers = []
    for page in range(MAX_PAGES):
        body = {"auth": True, "limit": PAGE, "offset": page * PAGE}
        (answers,) = survey(connection, [(f"{PING}.CONNZ", body)], within, lambda _: servers)
        found += answers
        if all(answer.get("data", {}).get("total", 0) <= (page + 1) * PAGE for answer in answers):
            break
    return found


def add_users(accounts: dict[str, AccountState], connz: Answers) -> None:
    """Adds the connections of `connz` to the users of `accounts`."""
    users: dict[tuple[str, str], UserState] = {}
    for answer in connz:
        for client in answer.get("data", {}).get("connections") or ():
            account = str(client.get("account") or "$G")
            name = str(client.get("authorized_user") or "")
            user = users.setdefault((account, name), UserState(name))
            user.connections += 1
            user.subscriptions += client.get("subscriptions", 0)
            user.pending_bytes += client.get("pending_bytes", 0)
            user.in_msgs += client.get("in_msgs", 0)
            user.out_msgs += client.get("out_msgs", 0)
            _note(user.servers, answer["server"]["name"])
            _note(user.clients, client.get("name"))
    for (account, _), user in sorted(users.items()):
        user.servers.sort(key=natural)
        user.clients.sort()
        accounts.setdefault(account, AccountState(account)).users.append(user)


def _note(names: list[str], name: Any) -> None:
    if name and name not in names:
        names.append(str(name))


def _show(accounts: list[AccountState]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for account in accounts:
        console.print(Text(printable(f"account {account.name}{described(account)}"), style="bold"))
        if account.users:
            titles = ["  user", ">clients", ">subs", ">pending", ">in msgs", ">out msgs", "servers"]
            console.print(table(titles, [_row(user) for user in account.users], console.width, last_wraps=True))
        else:
            console.print("  nobody is connected")


def described(account: AccountState) -> str:
    """Returns an account's kind, usage and limits, to follow its name."""
    parts = ["the system account"] if account.system else []
    if account.jetstream:
        usage = f"JetStream: {size(account.storage)} in files"
        usage += f" of {size(account.reserved_storage)}" if account.reserved_storage else ""
        usage += f", {size(account.memory)} in memory" if account.memory or account.reserved_memory else ""
        usage += f" of {size(account.reserved_memory)}" if account.reserved_memory else ""
        parts.append(usage)
    if account.limits:
        parts.append("limits: " + ", ".join(f"{key} {value:,}" for key, value in sorted(account.limits.items())))
    return f": {'; '.join(parts)}" if parts else ""


def _row(user: UserState) -> list[str]:
    return [
        f"  {user.name or '(no user)'}", f"{user.connections:,}", f"{user.subscriptions:,}", size(user.pending_bytes),
        f"{user.in_msgs:,}", f"{user.out_msgs:,}", ", ".join(user.servers),
    ]  # fmt: skip
