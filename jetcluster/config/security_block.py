"""The `authorization` and `accounts` blocks.

A key that would weaken security if it were silently ignored (auth callout, proxies) is refused.
"""

from __future__ import annotations

from jetcluster.config.account_options import (
    AccountJetStreamOptions,
    AccountOptions,
    AuthorizationOptions,
    PermissionOptions,
    ResponseOptions,
    SubjectLists,
    UserOptions,
)
from jetcluster.config.nkeys import is_key
from jetcluster.config.options import ClusterOptions, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    FieldError,
    Reader,
    Seconds,
    as_duration,
    as_int,
    as_list,
    as_map,
    as_string,
    as_strings,
    as_switch,
    go_quoted,
    go_value,
    wrong_type,
)

CLUSTER_PERMISSIONS = "cluster permissions are not supported: all nodes of a cluster see all subjects"
CONNECTION_TYPES = frozenset({"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"})


def is_valid_subject(subject: str) -> bool:
    """Returns True for a subject or filter: no empty token, no white space, `>` only at the end."""
    tokens = subject.split(".")
    return all(token and not any(c in " \t\r\n\0" for c in token) for token in tokens) and ">" not in tokens[:-1]


def _subjects(reader: Reader, name: str, node: ConfigNode, is_subscribe: bool) -> list[str]:
    items = node.value if isinstance(node.value, list) else [node]
    subjects: list[str] = []
    for item in items:
        if not isinstance(item.value, str):
            raise wrong_type(name, item, "a subject", element=item is not node)
        parts = item.value.split()
        if is_subscribe and len(parts) == 2 and all(is_valid_subject(part) for part in parts):
            subjects.append(" ".join(parts))
        elif is_valid_subject(item.value):
            subjects.append(item.value)
        else:
            reader.error(item, f'subject "{item.value}" is not a valid subject')
    return subjects


def _subject_lists(reader: Reader, name: str, node: ConfigNode, is_subscribe: bool) -> SubjectLists:
    if not isinstance(node.value, dict):
        return SubjectLists(allow=_subjects(reader, name, node, is_subscribe))
    lists = SubjectLists()
    for key, item in node.value.items():
        name = key.lower()
        if item.used_as_variable:
            continue
        if name == "allow":
            lists.allow = _subjects(reader, name, item, is_subscribe)
        elif name == "deny":
            lists.deny = _subjects(reader, name, item, is_subscribe)
        else:
            reader.error(
                item, f"Unknown field name \"{key}\" parsing subject permissions, only 'allow' or 'deny' are permitted"
            )
    return lists


def as_publish_lists(reader: Reader, name: str, node: ConfigNode) -> SubjectLists:
    return _subject_lists(reader, name, node, is_subscribe=False)


def as_subscribe_lists(reader: Reader, name: str, node: ConfigNode) -> SubjectLists:
    return _subject_lists(reader, name, node, is_subscribe=True)


def as_responses(reader: Reader, name: str, node: ConfigNode) -> ResponseOptions | None:
    if isinstance(node.value, bool):
        return ResponseOptions() if node.value else None
    responses = ResponseOptions()
    reader.block(as_map(node, name), responses, "allow_responses")
    return responses


def as_response_count(reader: Reader, name: str, node: ConfigNode) -> int:
    """Returns the number of responses; 0 is the default, negative is no limit."""
    return as_int(reader, name, node) or ResponseOptions().max_messages


def as_response_time(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    return as_duration(reader, name, node) or ResponseOptions().expires


def as_permissions(reader: Reader, name: str, node: ConfigNode) -> PermissionOptions:
    permissions = PermissionOptions()
    reader.block(as_map(node, name), permissions, "permissions")
    return permissions


def as_connection_types(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    types = [text.upper() for text in as_strings(reader, name, node)]
    bad = [text for text in types if text not in CONNECTION_TYPES]
    if bad:
        listed = " ".join(f'"{text}"' for text in bad)
        raise FieldError(f"invalid connection types [{listed}]")
    return types


def _users(reader: Reader, node: ConfigNode, account: str) -> list[UserOptions]:
    reader.user_places[account] = node
    users: list[UserOptions] = []
    for item in as_list(node, "users"):
        user, pairs = UserOptions(account=account), as_map(item, "users", element=True)
        if not reader.block(pairs, user, "users"):
            continue
        place = next(reversed(pairs.values()), item)  # as in nats-server, the last key that was read
        if not user.user and not user.nkey:
            reader.error(place, "User entry requires a user")
        elif user.nkey and (user.user or user.password):
            reader.error(place, "Nkey users do not take usernames or passwords")
        users.append(user)
    return users


def read_authorization_users(reader: Reader, node: ConfigNode, target: AuthorizationOptions) -> None:
    target.users = _users(reader, node, "$G")


def read_authorization(reader: Reader, node: ConfigNode, options: Options) -> None:
    auth = options.authorization = AuthorizationOptions(given=True)
    pairs = as_map(node, "authorization")
    reader.block(pairs, auth, "authorization")
    if auth.token and (auth.user or auth.password):
        raise FieldError("Cannot have a user/pass and token")
    if "users" in {key.lower() for key in pairs}:
        if auth.user:
            raise FieldError("Can not have a single user/pass and a users array")
        if auth.token:
            raise FieldError("Can not have a token and a users array")
    if auth.default_permissions is not None:
        _apply_defaults(auth.users, auth.default_permissions)


def read_cluster_authorization(reader: Reader, node: ConfigNode, cluster: ClusterOptions) -> None:
    auth = cluster.authorization = AuthorizationOptions()
    pairs = as_map(node, "authorization")
    reader.block(pairs, auth, "authorization", path="cluster.authorization")
    if auth.users or "users" in pairs:
        raise FieldError("Cluster authorization does not allow multiple users")
    if auth.token:
        raise FieldError("Cluster authorization does not support tokens")
    if auth.default_permissions is not None:
        raise FieldError(CLUSTER_PERMISSIONS)


def _apply_defaults(users: list[UserOptions], permissions: PermissionOptions) -> None:
    for user in users:
        if user.permissions is None:
            user.permissions = permissions


def as_cluster_traffic(_reader: Reader, name: str, node: ConfigNode) -> str:
    """Checks the value only: unlike nats-server, this server accounts Raft's traffic to no account."""
    if node.value not in ("system", "owner", ""):
        raise FieldError(f"Expected 'system' or 'owner' string value for \"{name}\", got {go_value(node)}")
    return ""


def as_account_nkey(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    if not is_key("A", text):
        raise FieldError(f'Not a valid public nkey for an account: "{go_quoted(text)}"')
    return text


def read_account_jetstream(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    given = as_switch("jetstream", node)
    account.jetstream = AccountJetStreamOptions() if given or isinstance(given, dict) else None
    if isinstance(given, dict):
        path = f"accounts.{account.name}.jetstream"
        reader.block(given, account.jetstream, "accounts.jetstream", path=path)


def read_account_limits(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    path = f"accounts.{account.name}.limits"
    reader.block(as_map(node, "limits"), account.limits, "accounts.limits", path=path)


def read_account_users(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    account.users = _users(reader, node, account.name)


def read_accounts(reader: Reader, node: ConfigNode, options: Options) -> None:
    """Reads `accounts { A { users: [...] } }` or `accounts: [A, B]`."""
    options.accounts = {}
    if isinstance(node.value, list):
        for item in node.value:
            name = as_string(reader, "accounts", item)
            if name in options.accounts:
                raise FieldError(f"Duplicate Account Entry: {name}", item)
            options.accounts[name] = AccountOptions(name)
        return
    for name, item in as_map(node, "accounts").items():
        if item.used_as_variable:
            continue
        account = options.accounts[name] = AccountOptions(name)
        if name == "$G":
            reader.error(item, '"$G" is a Reserved Account')
            continue
        try:
            reader.block(as_map(item, name), account, "accounts", path=f"accounts.{name}")
        except FieldError as error:
            reader.error(error.node or item, str(error))
        if account.default_permissions is not None:
            _apply_defaults(account.users, account.default_permissions)


def check_users(reader: Reader, options: Options) -> None:
    """Checks users across blocks: names are unique, and accounts with users exclude a single user or a token."""
    auth = options.authorization
    account_users = [user for account in (options.accounts or {}).values() for user in account.users]
    if account_users and (auth.user or auth.token):
        kind = "single user/pass" if auth.user else "token"
        reader.error(reader.user_places[account_users[0].account], f"Can not have a {kind} and accounts")
    seen: set[str] = set()
    for user in [*auth.users, *account_users]:
        name = user.user or user.nkey
        if name in seen:
            kind = "user" if user.user else "nkey"
            reader.error(reader.user_places[user.account], f'Duplicate {kind} "{name}" detected')
        seen.add(name)
